"""Contenders timed in turns, so that a busy machine treats them all alike.

On a CPU each lives in a process of its own: thread pools of different libraries, and even two models of one library,
get in each other's way within one process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from emnat import world
from emnat.evaluation import in_rounds

_TRIALS = 3  # turns to find a contender's best number of threads
_FAST = 1000.0  # milliseconds; slower ones read their weights many times in a call anyway
_SLOW = 4000.0  # milliseconds; such are tried once only
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
    contenders: Sequence[Contender],
    device: torch.device,
    batch: int,
    target_tokens: int,
    runs: int,
    reference: tuple[str, str],
) -> list[Row]:
    """All contenders in one run; speed-ups are over `reference`, a name and an engine, if it takes part."""
    workers = [_at_best_threads(each) if device.type == "cpu" else _Inline(each, device) for each in contenders]
    medians = in_turns([worker.turn for worker in workers], runs)
    for worker in workers:
        worker.close()
    of_reference = next(
        (ms for each, ms in zip(contenders, medians, strict=True) if (each.name, each.engine) == reference), None
    )
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
            of_reference / ms if of_reference else None,
            worker.threads,
            runs,
            world.describe(device),
            torch.__version__,
        )
        for each, worker, ms in zip(contenders, workers, medians, strict=True)
    ]


def in_turns(turns: Sequence[Callable[[], float]], runs: int) -> list[float]:
    """The median milliseconds of each, over `runs` rounds in which each has one turn."""
    return [statistics.median(times) for times in in_rounds(turns, runs)]


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

    def close(self) -> None:
        del self._function  # and with it the model


class _Worker:
    """A contender in a process of its own, with a number of threads."""

    def __init__(self, contender: Contender, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.threads = threads
        self._pipe, theirs = context.Pipe()
        arguments = (contender.prepare, threads, theirs)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process is noticed

    def turn(self) -> float:
        self._pipe.send(None)
        return float(self._pipe.recv())

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _at_best_threads(contender: Contender) -> _Worker:
    """Each number of threads is tried in a fresh process: what an earlier try leaves behind slows the next one down."""
    medians: dict[int, float] = {}
    threads, most = 1, torch.get_num_threads()
    while threads <= most and most > 1:
        worker = _Worker(contender, threads)
        trials = _TRIALS if worker.turn() < _SLOW else 1
        medians[threads] = statistics.median(worker.turn() for _ in range(trials))
        worker.close()
        threads *= 2
    worker = _Worker(contender, min(medians, key=lambda count: medians[count], default=1))
    worker.turn()
    return worker


def _serve(prepare: Callable[[int], Function], threads: int, pipe: Connection) -> None:
    """Take a turn whenever asked."""
    torch.set_num_threads(threads)
    function = prepare(threads)
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv()
            pipe.send(time_turn(function, torch.device("cpu")))
