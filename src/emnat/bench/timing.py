"""Contenders timed in turns, so that a busy machine treats them all alike.

On a CPU each lives in a process of its own: thread pools of different libraries, and even two models of one library,
get in each other's way within one process.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from emnat import world

_TRIALS = 3  # turns to find a contender's best number of threads
_FAST = 1000.0  # milliseconds; slower ones read their weights many times in a call anyway
Function = Callable[[], object]


@dataclass(frozen=True)
class Contender:
    """One way to translate a batch. `prepare` makes the function that does it once, with so many threads."""

    name: str
    engine: str
    precision: str
    prepare: Callable[[int], Function]


@dataclass(frozen=True)
class Row:
    name: str
    engine: str
    device: str
    precision: str
    batch: int
    target_tokens: int  # of one sentence
    ms_median: float
    sentences_per_s: float
    speedup_over_ar_beam5: float | None
    threads: int
    runs: int
    hardware: str
    torch: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    contenders: Sequence[Contender], device: torch.device, batch: int, target_tokens: int, runs: int, reference: str
) -> list[Row]:
    """All contenders in one run; speed-ups are over the first one named `reference`, our own."""
    workers = [_Worker(each) if device.type == "cpu" else _Inline(each, device) for each in contenders]
    medians = in_turns([worker.turn for worker in workers], runs)
    of_reference = next(ms for each, ms in zip(contenders, medians, strict=True) if each.name == reference)
    return [
        Row(
            each.name,
            each.engine,
            device.type,
            each.precision,
            batch,
            target_tokens,
            ms,
            batch * 1000 / ms,
            of_reference / ms,
            worker.threads,
            runs,
            world.describe(device),
            torch.__version__,
        )
        for each, worker, ms in zip(contenders, workers, medians, strict=True)
    ]


def in_turns(turns: Sequence[Callable[[], float]], runs: int) -> list[float]:
    """The median milliseconds of each, over `runs` rounds in which each has one turn."""
    rounds = [[turn() for turn in turns] for _ in range(runs)]
    return [statistics.median(own) for own in zip(*rounds, strict=True)]


def time_turn(function: Function, device: torch.device) -> float:
    """A fast function is called twice and the second call timed: the first brings its weights back into the caches,
    where they are when one model serves one sentence after another."""
    ms = _time_once(function, device)
    return _time_once(function, device) if ms < _FAST else ms


def _time_once(function: Function, device: torch.device) -> float:
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) * 1000


class _Inline:
    """A contender on a GPU, where the host's threads do not matter."""

    threads = 1

    def __init__(self, contender: Contender, device: torch.device) -> None:
        self._function, self._device = contender.prepare(1), device
        for _ in range(3):  # the first call runs plainly, the second is captured
            self.turn()

    def turn(self) -> float:
        return time_turn(self._function, self._device)


class _Worker:
    """A contender in a process of its own, at its best number of threads."""

    def __init__(self, contender: Contender) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (contender.prepare, torch.get_num_threads(), theirs)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process is noticed
        self.threads = int(self._pipe.recv())

    def turn(self) -> float:
        self._pipe.send(None)
        return float(self._pipe.recv())


def _serve(prepare: Callable[[int], Function], most_threads: int, pipe: Connection) -> None:
    """Find the best number of threads, then take a turn whenever asked."""
    cpu = torch.device("cpu")
    medians: dict[int, float] = {}
    threads = 1
    while threads <= most_threads:
        torch.set_num_threads(threads)
        function = prepare(threads)
        trials = _TRIALS if _time_once(function, cpu) < 4 * _FAST else 1
        medians[threads] = statistics.median(time_turn(function, cpu) for _ in range(trials))
        del function
        threads *= 2
    best = min(medians, key=lambda count: medians[count])
    torch.set_num_threads(best)
    function = prepare(best)
    time_turn(function, cpu)
    pipe.send(best)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        pipe.send(time_turn(function, cpu))
