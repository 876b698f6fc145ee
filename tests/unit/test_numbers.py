"""Numbers at the edge: each has an answer."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
from tests.conftest import TINY

from emnat.config import Text, build_config
from emnat.data import grammar
from emnat.data.prepare import prepare_corpus
from emnat.decoding import BeamSearch, Translator
from emnat.decoding.beam import cache_size
from emnat.errors import UserError
from emnat.evaluation import log_probs_of_lines
from emnat.models import NAT, Teacher
from emnat.text import TextPipeline, Vocabulary, train_vocabulary
from emnat.text.subwords import EOS
from emnat.world import is_out_of_memory

CPU = torch.device("cpu")
LINES = [line for pair in grammar.draw_pairs(100, seed=1) for line in pair]


def test_a_corpus_of_too_long_sentences_only(tmp_path: Path) -> None:
    grammar.write_corpus(tmp_path / "corpus", train=50, valid=5, test=5, seed=1)
    values = {
        "run": "x",
        "data": grammar.corpus_files(tmp_path / "corpus"),
        "text": {"vocabulary": 400, "max_tokens": 1},
    }
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=r"no pair is left after cleaning .*too many tokens: 50"):
        prepare_corpus(build_config(values, "test"), tmp_path / "out")


def test_a_length_that_has_no_class(caplog: pytest.LogCaptureFixture) -> None:
    """Ten positions are all this student has; a longer target cannot be its output."""
    vocabulary = Vocabulary(train_vocabulary(lambda: iter(LINES), "bpe", 400, seed=1), "test")
    translator = Translator(NAT(TINY, 400, 10).eval(), TextPipeline(Text(), vocabulary), CPU)
    with caplog.at_level(logging.WARNING):
        found = list(log_probs_of_lines(translator, [("Ja.", "Yes."), ("Ja.", "no " * 30), ("Ja.", "")], 10))
    assert math.isfinite(found[0])
    assert found[1:] == [-math.inf, -math.inf]
    assert "line 2" in caplog.text


@torch.inference_mode()
def test_a_teacher_that_does_not_end(tiny_teacher: Teacher) -> None:
    """Its outputs end at their limits, each with a finite score; there is always one."""
    tiny_teacher.norm.weight.zero_()
    tiny_teacher.norm.bias.copy_(-100.0 * tiny_teacher.embedding.tokens[EOS])
    source, lengths, limits = torch.tensor([[5, 6, 7], [8, 5, 0]]), torch.tensor([3, 2]), torch.tensor([5, 2])
    state = tiny_teacher.state(2, 3, 4, cache_size(5))
    found = BeamSearch(state, 2, 4, 5, 0.6, CPU, captured=False).run(source, lengths, limits)
    assert found.lengths_MK[:, 0].tolist() == [5, 2]
    assert found.scores_MK[:, 0].isfinite().all()


def test_memory_of_the_machine_that_runs_out_is_known_for_what_it_is() -> None:
    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 50)
    assert is_out_of_memory(found.value)
    assert not is_out_of_memory(RuntimeError("shapes differ"))
