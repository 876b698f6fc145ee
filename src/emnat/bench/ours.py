"""Our own contenders, with random weights: each is forced to the same output length, so weights do not matter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from emnat import world
from emnat.bench.timing import Contender, Function
from emnat.config import Decode, Model, NarDecoder, Size
from emnat.data.store import Ints
from emnat.decoding.engine import Engine
from emnat.models import NAT, Teacher

OURS, AR_BEAM_5 = "emnat", "AR beam 5"
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
    searches = {
        "AR greedy": ((), 1),
        AR_BEAM_5: ((), 5),
        "AR 12+1 greedy": ((12, 1), 1),
        "AR 12+1 beam 5": ((12, 1), 5),
    }
    passes = {name: (decoder, 1) for name, decoder in DECODERS.items()}
    passes[f"NAT + ODD, {CANDIDATES} lengths rescored"] = ("odd", CANDIDATES)
    precision = "bfloat16" if world.uses_bf16(task.device, task.precision) else "float32"
    return [
        *(Contender(name, OURS, precision, partial(_search, task, *way)) for name, way in searches.items()),
        *(Contender(name, OURS, precision, partial(_one_pass, task, *way)) for name, way in passes.items()),
    ]


def _search(task: Task, layers: tuple[int, ...], beams: int, threads: int) -> Function:
    torch.manual_seed(0)
    teacher = Teacher(task.settings(*layers), task.vocabulary, task.tokens * 2).to(task.device).eval()
    engine = Engine(teacher, None, task.device, task.precision, Decode())
    return partial(engine.search_best, task.sources(), beams, np.full(task.batch, task.tokens))


def _one_pass(task: Task, decoder: NarDecoder, candidates: int, threads: int) -> Function:
    torch.manual_seed(0)
    sizes = task.settings(), task.vocabulary, task.tokens * 2
    student = NAT(*sizes).to(task.device).eval()
    referee = Teacher(*sizes).to(task.device).eval() if candidates > 1 else None
    engine = Engine(student, referee, task.device, task.precision, Decode())
    lengths = np.full(task.batch, task.tokens)
    return partial(engine.one_pass, task.sources(), decoder, candidates, referee is not None, lengths)
