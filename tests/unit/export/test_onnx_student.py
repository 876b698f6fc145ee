"""Exported students against the ones they come from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from emnat.config import Decode, Model, NarDecoder
from emnat.decoding.engine import Engine
from emnat.decoding.exported import DECODER_FILE, ENCODER_FILE, ExportedEngine, ExportedStudent
from emnat.errors import UserError
from emnat.export import Precision
from emnat.export.onnx_student import save_for_onnx
from emnat.models import NAT, Teacher

CPU = torch.device("cpu")
SIZES = {"encoder_layers": 2, "decoder_layers": 3, "hidden": 64, "filter": 128, "heads": 4}
VOCABULARY, LONGEST = 300, 40


def make(folder: Path, seed: int, precision: Precision, norm: str = "pre") -> tuple[NAT, ExportedStudent]:
    torch.manual_seed(seed)
    student = NAT(Model.model_validate(SIZES | {"norm": norm}), VOCABULARY, LONGEST).eval()
    with torch.no_grad():  # weights as large as trained ones, so that the best label stands out
        student.embedding.tokens *= 3
    save_for_onnx(student, folder, precision)
    return student, ExportedStudent(folder, VOCABULARY, LONGEST, threads=1)


def sources(seed: int, count: int = 60) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(5, VOCABULARY, size) for size in random.integers(1, 30, count)]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("decoder", ["argmax", "dedup", "odd"])
def test_float32_translates_the_same(tmp_path: Path, seed: int, decoder: NarDecoder, norm: str) -> None:
    student, exported = make(tmp_path, seed, "float32", norm)
    lines = [*sources(seed), np.array([], np.int64)]
    wanted = Engine(student, None, CPU, "float32", Decode()).one_pass(lines, decoder, 1, False, None)
    assert ExportedEngine(exported, None, Decode()).one_pass(lines, decoder, 1, False, None) == wanted


def test_rescoring_chooses_the_same(tmp_path: Path, seed: int) -> None:
    student, exported = make(tmp_path, seed, "float32")
    referee = Teacher(Model.model_validate(SIZES), VOCABULARY, LONGEST).eval()
    wanted = Engine(student, referee, CPU, "float32", Decode()).one_pass(sources(seed), "odd", 5, True, None)
    engine = ExportedEngine(exported, referee, Decode())
    assert engine.one_pass(sources(seed), "odd", 5, True, None) == wanted
    for judge, remedy in ((referee, "let it rescore"), (None, "export the whole run")):
        with pytest.raises(UserError, match=remedy):
            ExportedEngine(exported, judge, Decode()).one_pass(sources(seed), "odd", 5, False, None)


@pytest.mark.parametrize("tokens", [None, 200, 500_000])
def test_batches_are_as_large_as_they_may_be_over_all_candidates(
    tmp_path: Path, seed: int, tokens: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, exported = make(tmp_path, seed, "float32")
    propose, sizes = exported.propose, []

    def watched(memory: np.ndarray, *lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(memory.shape[0] * memory.shape[1])  # source positions
        return propose(memory, *lengths)

    monkeypatch.setattr(exported, "propose", watched)
    referee = Teacher(Model.model_validate(SIZES), VOCABULARY, LONGEST).eval()
    ExportedEngine(exported, referee, Decode(tokens=tokens)).one_pass(sources(seed), "odd", 5, True, None)
    allowed = min(tokens or 1024, 1024)
    assert allowed / 2 < max(sizes) <= allowed


def test_what_memory_does_not_hold_is_no_damage(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 6 : EXCEPTION : Failed to allocate memory for requested buffer")

    _, exported = make(tmp_path, seed, "float32")
    monkeypatch.setattr(exported, "_decoder", SimpleNamespace(run=run))
    with pytest.raises(MemoryError):
        ExportedEngine(exported, None, Decode()).one_pass(sources(seed), "odd", 1, False, None)


def test_int8_is_close(tmp_path: Path, seed: int) -> None:
    """Scores within a few hundredths of their spread, and mostly the same labels."""
    student, exported = make(tmp_path, seed, "int8")
    random = np.random.default_rng(seed)
    source_BS, lengths_B = random.integers(5, VOCABULARY, (16, 20)), random.integers(1, 21, 16)
    memory, length_scores = exported.encode(source_BS, lengths_B)
    with torch.inference_mode():
        own = student.encode(torch.from_numpy(source_BS), torch.from_numpy(lengths_B))
        own_lengths = student._length_logits(own).numpy()
        targets_B = torch.full((16,), 12)
        logits_BTV = student.propose(own, targets_B[:, None], 12)
    assert np.abs(length_scores - own_lengths).max() < 0.1 * own_lengths.std()
    scores, labels = exported.propose(memory, lengths_B, targets_B.numpy())
    spread = logits_BTV[..., 4:].std().item()
    assert np.abs(scores[..., 0] - logits_BTV.max(-1).values.numpy()).max() < 0.2 * spread
    assert (labels[..., 0] == logits_BTV.argmax(-1).numpy()).mean() > 0.9


def test_padding_changes_nothing(tmp_path: Path, seed: int) -> None:
    _, exported = make(tmp_path, seed, "float32")
    alone = np.arange(5, 12)[None]
    padded = np.concatenate([np.pad(alone, ((0, 0), (0, 9))), np.full((1, 16), 7)])
    together = exported.encode(padded, np.array([7, 16]))
    by_itself = exported.encode(alone, np.array([7]))
    assert np.abs(together[0][0, :7] - by_itself[0][0]).max() < 1e-4
    assert np.abs(together[1][0] - by_itself[1][0]).max() < 1e-4


def test_a_damaged_graph_is_explained(tmp_path: Path, seed: int) -> None:
    make(tmp_path, seed, "float32")
    (tmp_path / DECODER_FILE).write_bytes(b"not a graph")
    with pytest.raises(UserError, match=DECODER_FILE):
        ExportedStudent(tmp_path, VOCABULARY, LONGEST)


@pytest.mark.parametrize(
    "declared",
    [(VOCABULARY, 2 * LONGEST), (5, LONGEST), None],
    ids=["more lengths than the graph has", "fewer labels than it gives", "encoder and decoder exchanged"],
)
def test_graphs_of_something_else_are_explained(tmp_path: Path, seed: int, declared: tuple[int, int] | None) -> None:
    make(tmp_path, seed, "float32")
    if declared is None:
        (tmp_path / ENCODER_FILE).rename(tmp_path / "x")
        (tmp_path / DECODER_FILE).rename(tmp_path / ENCODER_FILE)
        (tmp_path / "x").rename(tmp_path / DECODER_FILE)
    exported = ExportedStudent(tmp_path, *(declared or (VOCABULARY, LONGEST)), threads=1)
    with pytest.raises(UserError, match="not those of a student"):
        ExportedEngine(exported, None, Decode()).one_pass(sources(seed), "odd", 1, False, None)
