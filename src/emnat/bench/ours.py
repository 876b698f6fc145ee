"""Our own contenders, with random weights: each is forced to the same output length, so weights do not matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from emnat import world
from emnat.bench.timing import Contender
from emnat.config import Decode, Model, NarDecoder, Size
from emnat.data.store import Ints
from emnat.decoding.engine import Engine
from emnat.models import NAT, Teacher

AR_BEAM_5 = "AR beam 5"
CANDIDATES = 9
DECODERS: dict[str, NarDecoder] = {"NAT argmax": "argmax", "NAT + dedup": "dedup", "NAT + ODD": "odd"}


@dataclass(frozen=True)
class Task:
    """What every contender has to do: translate `batch` random sources of a length into outputs of a length."""

    size: Size
    vocabulary: int
    tokens: int  # of each source and of each output
    batch: int
    device: torch.device
    precision: str

    def sources(self) -> list[Ints]:
        random = np.random.default_rng(0)
        return [random.integers(5, self.vocabulary, self.tokens) for _ in range(self.batch)]

    def settings(self, encoder_layers: int | None = None, decoder_layers: int | None = None) -> Model:
        layers = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
        return Model.model_validate({"size": self.size} | {k: v for k, v in layers.items() if v is not None})


def contenders(task: Task) -> list[Contender]:
    """AR and NAT in PyTorch: on a GPU as captured graphs."""
    torch.manual_seed(0)
    longest = task.tokens * 2
    teacher = Teacher(task.settings(), task.vocabulary, longest).to(task.device).eval()
    shallow = Teacher(task.settings(12, 1), task.vocabulary, longest).to(task.device).eval()
    student = NAT(task.settings(), task.vocabulary, longest).to(task.device).eval()
    rows = [
        _autoregressive("AR greedy", task, teacher, 1),
        _autoregressive(AR_BEAM_5, task, teacher, 5),
        _autoregressive("AR 12+1 greedy", task, shallow, 1),
        _autoregressive("AR 12+1 beam 5", task, shallow, 5),
    ]
    rows += [_one_pass(name, task, student, None, decoder, 1) for name, decoder in DECODERS.items()]
    name = f"NAT + ODD, {CANDIDATES} lengths rescored"
    return [*rows, _one_pass(name, task, student, teacher, "odd", CANDIDATES)]


def with_threads(function: Callable[[], object], threads: int) -> Callable[[], object]:
    """PyTorch's number of threads is one for all, so it is set before every turn."""

    def run() -> object:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return function()

    return run


def _autoregressive(name: str, task: Task, teacher: Teacher, beams: int) -> Contender:
    engine = Engine(teacher, None, task.device, task.precision, Decode())
    sources, lengths = task.sources(), np.full(task.batch, task.tokens)

    def prepare(threads: int) -> Callable[[], object]:
        return with_threads(lambda: engine.search_best(sources, beams, lengths), threads)

    return Contender(name, "emnat", _precision(task), prepare)


def _one_pass(
    name: str, task: Task, student: NAT, referee: Teacher | None, decoder: NarDecoder, candidates: int
) -> Contender:
    engine = Engine(student, referee, task.device, task.precision, Decode())
    sources, lengths = task.sources(), np.full(task.batch, task.tokens)

    def prepare(threads: int) -> Callable[[], object]:
        rescored = referee is not None
        return with_threads(lambda: engine.one_pass(sources, decoder, candidates, rescored, lengths), threads)

    return Contender(name, "emnat", _precision(task), prepare)


def _precision(task: Task) -> str:
    return "bfloat16" if world.uses_bf16(task.device, task.precision) else "float32"
