"""Our students on ONNX Runtime, in float32 and in int8."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from emnat.bench.ours import DECODERS, Task
from emnat.bench.timing import Contender, Function
from emnat.config import Decode, NarDecoder
from emnat.decoding.exported import ExportedEngine, ExportedStudent
from emnat.export import Precision
from emnat.export.onnx_student import save_for_onnx
from emnat.models import NAT

_DEEP = (10, 2)  # layers: most of the work where it is done once for all length candidates


def exported(task: Task) -> list[Contender]:
    precisions: tuple[Precision, ...] = "float32", "int8"
    ways: list[tuple[str, tuple[int, ...], Precision, NarDecoder]] = [
        (name, (), precision, decoder) for precision in precisions for name, decoder in DECODERS.items()
    ]
    ways.append((f"NAT {_DEEP[0]}+{_DEEP[1]} + ODD", _DEEP, "int8", "odd"))
    return [
        Contender(name, "emnat (ONNX Runtime)", precision, partial(_prepare, task, layers, precision, decoder))
        for name, layers, precision, decoder in ways
    ]


def _prepare(task: Task, layers: tuple[int, ...], precision: Precision, decoder: NarDecoder, threads: int) -> Function:
    torch.manual_seed(0)
    student = NAT(task.settings(*layers), task.vocabulary, task.tokens * 2)
    with tempfile.TemporaryDirectory() as folder:
        save_for_onnx(student, Path(folder), precision)
        loaded = ExportedStudent(Path(folder), task.vocabulary, task.tokens * 2, threads)
    engine = ExportedEngine(loaded, None, Decode())
    return partial(engine.one_pass, task.sources(), decoder, 1, False, np.full(task.batch, task.tokens))
