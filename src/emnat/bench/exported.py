"""Our students on ONNX Runtime, in float32 and in int8."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from emnat.bench.ours import DECODERS, Task
from emnat.bench.timing import Contender
from emnat.config import Decode, NarDecoder
from emnat.decoding.exported import ExportedEngine, ExportedStudent
from emnat.export import Precision
from emnat.export.onnx_student import save_for_onnx
from emnat.models import NAT

_DEEP = 10, 2  # layers: most of the work where it is done once for all length candidates


def exported(task: Task) -> list[Contender]:
    precisions: tuple[Precision, ...] = "float32", "int8"
    rows = [
        _contender(name, task, (None, None), precision, decoder)
        for precision in precisions
        for name, decoder in DECODERS.items()
    ]
    return [*rows, _contender(f"NAT {_DEEP[0]}+{_DEEP[1]} + ODD", task, _DEEP, "int8", "odd")]


def _contender(
    name: str, task: Task, layers: tuple[int | None, int | None], precision: Precision, decoder: NarDecoder
) -> Contender:
    sources, lengths = task.sources(), np.full(task.batch, task.tokens)

    def prepare(threads: int) -> Callable[[], object]:
        torch.manual_seed(0)
        student = NAT(task.settings(*layers), task.vocabulary, task.tokens * 2)
        with tempfile.TemporaryDirectory() as folder:
            save_for_onnx(student, Path(folder), precision)
            loaded = ExportedStudent(Path(folder), task.vocabulary, task.tokens * 2, threads)
        engine = ExportedEngine(loaded, None, Decode())
        return lambda: engine.one_pass(sources, decoder, 1, False, lengths)

    return Contender(name, "emnat (ONNX Runtime)", precision, prepare)
