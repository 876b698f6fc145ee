"""Each half of a corpus is judged by a student that has not learned it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emnat import steps
from emnat.config import build_config
from emnat.data import Sequences, SequenceWriter, grammar
from emnat.evaluation import log_probs_of_pairs
from emnat.steps import Corpus, Targets
from emnat.workspace import Run, open_run

PAIRS = 61


def tiny_run(folder: Path) -> tuple[Run, Corpus]:
    grammar.write_corpus(folder / "corpus", train=PAIRS, valid=5, test=1, seed=3)
    training = {"steps": 6, "tokens": 400, "validate_every": 3, "validation_sentences": 2, "warmup": 2}
    model = {"encoder_layers": 1, "decoder_layers": 1, "hidden": 16, "filter": 16, "heads": 2, "training": training}
    data = {name: [str(folder / f"corpus/{name}.{side}") for side in ("de", "en")] for name in ("train", "valid")}
    values = {"run": str(folder / "run"), "device": "cpu", "data": data, "teacher": model, "student": model}
    values |= {"text": {"vocabulary": 500}, "em": {"propose_beam": 2, "cross_fit": True}}
    run = open_run(build_config(values, "test"))
    return run, steps.prepare(run)


def with_first_half_reversed(targets: Targets, folder: Path) -> Targets:
    folder.mkdir()
    with SequenceWriter(folder, "train.target", 500) as writer:
        for i, ids in enumerate(targets.sequences):
            writer.append(ids[::-1] if i < PAIRS / 2 else ids)
    return Targets("data", folder)


def test_a_judge_never_learns_what_it_judges(tmp_path: Path) -> None:
    weights = []
    for name in ("as-it-is", "reversed"):
        run, corpus = tiny_run(tmp_path / name)
        learned = corpus.truth
        if name == "reversed":
            learned = with_first_half_reversed(learned, tmp_path / "reversed-targets")
        judges = steps.train_judges(run, corpus, "free-1", learned)
        weights.append([(run.artifact(judge.artifact) / "model.safetensors").read_bytes() for judge in judges])
    (first, second), (first_again, second_again) = weights
    assert first == first_again  # of the first half it knows nothing
    assert second != second_again


def test_candidates_have_the_scores_of_their_judge(tmp_path: Path) -> None:
    run, corpus = tiny_run(tmp_path)
    teacher = steps.train_teacher(run, corpus, "free-1", corpus.truth, None)
    judges = steps.train_judges(run, corpus, "free-1", corpus.truth)
    candidates = steps.propose(run, corpus, "free-1", teacher, judges, teacher, corpus.truth)
    truth = Sequences(corpus.folder, "train.target")
    lengths = np.maximum(corpus.sources.lengths, truth.lengths)
    by_judge = [log_probs_of_pairs(steps.load(run, judge), corpus.sources, truth, lengths, "judge") for judge in judges]
    expected = np.where(np.arange(PAIRS) < PAIRS / 2, *by_judge)
    assert candidates.scores.student[:, candidates.incumbent_column] == pytest.approx(expected, rel=1e-4)
    assert not np.allclose(*by_judge, rtol=1e-3)
