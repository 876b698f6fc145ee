from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from emnat.config import Decode, Text
from emnat.data import Sequences, SequenceWriter
from emnat.data.grammar import draw_pairs
from emnat.data.prepare import evaluation_set_from_pairs
from emnat.decoding import Translator
from emnat.evaluation import latency, log_probs_of_candidates, multimodality, ncm_of_outputs, score_outputs
from emnat.evaluation.scores import repeat_rate
from emnat.models import NAT, Teacher
from emnat.text import TextPipeline, Vocabulary, train_vocabulary

PAIRS = draw_pairs(200, seed=1)
SERIALIZED = train_vocabulary(lambda: (line for pair in PAIRS for line in pair), "bpe", 700, seed=1)


def sacrebleu_command(outputs: list[str], references: list[str], folder: Path, *options: str) -> float:
    for name, lines in (("out", outputs), ("ref", references)):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(folder / "ref"), "-i", str(folder / "out"), "-b", "-w", "6"]
    return float(subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_and_chrf_equal_sacrebleus_own_command(tmp_path: Path, lowercase: bool) -> None:
    pipeline = TextPipeline(Text(moses=True), Vocabulary(SERIALIZED, "x"))
    sentences = evaluation_set_from_pairs(PAIRS, pipeline)
    # Outputs that are partly right: the translation of the next sentence for every third.
    shifted = [PAIRS[(i + 1) % 200][1].upper() if i % 3 == 0 else PAIRS[i][1] for i in range(200)]
    outputs = [pipeline.encode_target(line) for line in shifted]
    right = [pipeline.encode_target(target) for _, target in PAIRS]
    of_all = score_outputs({"right": right, "shifted": outputs}, sentences, pipeline, lowercase)
    found = of_all["shifted"]
    assert of_all["right"]["bleu"] == pytest.approx(100)
    tokenised = [pipeline.decode_target(ids) for ids in outputs]
    raw = [pipeline.detokenise(line) for line in tokenised]
    case = ["-lc"] if lowercase else []
    wanted = sacrebleu_command(tokenised, sentences.processed_references, tmp_path, "-tok", "none", "--force", *case)
    assert found["bleu"] == pytest.approx(wanted, abs=1e-4)
    assert 20 < wanted < 95
    wanted = sacrebleu_command(raw, sentences.references, tmp_path, *case)
    assert found["bleu_detokenised"] == pytest.approx(wanted, abs=1e-4)
    case = ["--chrf-lowercase"] if lowercase else []
    wanted = sacrebleu_command(raw, sentences.references, tmp_path, "-m", "chrf", *case)
    assert found["chrf"] == pytest.approx(wanted, abs=1e-4)
    assert "tok:none" in found["signature"]
    assert ("case:lc" in found["signature"]) == lowercase
    assert found["accuracy"] == pytest.approx(133 / 200)


def test_repeat_rate_sees_through_concat() -> None:
    assert repeat_rate([[7, 7, 8], [9]]) == 1 / 4
    assert repeat_rate([[7, 4, 7, 8]]) == 1 / 3
    assert repeat_rate([[]]) == 0.0


@pytest.mark.parametrize("part", [1, 100])
def test_ncm_by_hand(tiny_student: NAT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Eq. 4 from every position's probability, one by one; scored in parts or at once."""
    monkeypatch.setattr("emnat.evaluation.likelihood._PART", part)
    sources = [np.array([5, 6, 7]), np.array([8])]
    targets = [np.array([4, 5]), np.array([6, 7, 8])]
    translator = Translator(tiny_student, TextPipeline(Text(), Vocabulary(SERIALIZED, "x")), torch.device("cpu"))
    for name, side in (("source", sources), ("target", targets)):
        with SequenceWriter(tmp_path, name, 20) as writer:
            for ids in side:
                writer.append(ids)
    stores = (Sequences(tmp_path, name) for name in ("source", "target"))
    cm, ncm = multimodality(translator, *stores, "test")
    total = 0.0
    with torch.inference_mode():
        for source, target in zip(sources, targets, strict=True):
            memory = tiny_student.encode(torch.tensor(source)[None], torch.tensor([len(source)]))
            total -= tiny_student.length_log_probs(memory)[0, len(target) - 1].item()
            log_probs = tiny_student.propose(memory, torch.tensor([[len(target)]]), len(target)).log_softmax(-1)
            total -= sum(log_probs[0, t, token].item() for t, token in enumerate(target.tolist()))
    assert cm == pytest.approx(total / 2, rel=1e-5)
    assert ncm == pytest.approx(total / 5, rel=1e-5)


def test_ncm_of_outputs_is_that_of_a_corpus_of_them(tiny_student: NAT, tiny_teacher: Teacher, tmp_path: Path) -> None:
    pipeline = TextPipeline(Text(), Vocabulary(SERIALIZED, "x"))
    student, teacher = (Translator(model, pipeline, torch.device("cpu")) for model in (tiny_student, tiny_teacher))
    sources = [np.array([5, 6, 7]), np.array([8]), np.array([7, 7])]
    outputs = teacher.translate_ids(sources, beam=2)
    for name, side in (("source", sources), ("target", outputs)):
        with SequenceWriter(tmp_path, name, 20) as writer:
            for ids in side:
                writer.append(ids)
    _, ncm = multimodality(student, *(Sequences(tmp_path, name) for name in ("source", "target")), "test")
    assert ncm_of_outputs(student, sources, outputs, "test") == pytest.approx(ncm, rel=1e-6)


@pytest.mark.parametrize("tokens", [4, 60, 1000])
def test_candidates_are_scored_as_if_each_were_alone(
    tiny_student: NAT, tiny_teacher: Teacher, seed: int, tokens: int
) -> None:
    """However many fit into a batch, and in whatever order their lengths bring them there."""
    random = np.random.default_rng(seed)
    sources = torch.from_numpy(random.integers(5, 9, (5, 3)))
    longest_B1 = torch.tensor([[2], [5], [1], [6], [3]])
    lengths_BK = torch.minimum(torch.from_numpy(random.integers(1, 7, (5, 3))), longest_B1)
    lengths_BK = torch.cat([longest_B1, lengths_BK], 1)
    source_lengths_B, tokens_BKT = torch.tensor([3, 1, 2, 3, 2]), torch.from_numpy(random.integers(5, 9, (5, 4, 6)))
    pipeline = TextPipeline(Text(), Vocabulary(SERIALIZED, "x"))
    models = [tiny_student, tiny_teacher]
    scorers = [Translator(m, pipeline, torch.device("cpu"), settings=Decode(tokens=tokens)) for m in models]
    found = log_probs_of_candidates(scorers, (sources, source_lengths_B), tokens_BKT, lengths_BK)
    for model, scores_BK in zip(models, found, strict=True):
        for b, k in np.ndindex(5, 4):
            size, length = int(source_lengths_B[b]), int(lengths_BK[b, k])
            alone = sources[b : b + 1, :size], source_lengths_B[b : b + 1]
            wanted = model.log_prob(*alone, tokens_BKT[b, k : k + 1, :length], lengths_BK[b, k : k + 1])
            assert scores_BK[b, k] == pytest.approx(wanted.item(), abs=1e-4)


def test_latency_is_a_median_over_runs_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], []
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    seconds = {"a": iter([9, 5, 1, 1, 1, 1, 1]), "b": iter([9, 5, 2, 2, 7, 3, 2])}  # of every turn, two to get warm

    def translate(name: str, sources: Sequence[object]) -> None:
        calls.append((name, len(sources)))
        clock[0] += next(seconds[name]) if len(calls) % 2 else 0

    ways = {name: partial(translate, name) for name in seconds}
    found = latency.batch_1_latency(ways, [np.array([1])] * 2, 5, torch.device("cpu"))
    assert calls == [("a", 1)] * 4 + [("b", 1)] * 4 + ([("a", 1)] * 2 + [("b", 1)] * 2) * 5  # a sentence at a time
    assert [found[name]["ms"] for name in ways] == [500, 1000]  # of two sentences
    assert [found["b"][name] for name in ("ms_fastest", "ms_slowest", "runs", "sentences")] == [1000, 3500, 5, 2]
