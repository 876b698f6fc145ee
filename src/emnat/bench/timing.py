"""Contenders timed in turns, so that a busy machine treats them all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from emnat import world

_TRIALS = 3  # runs to find a contender's best number of threads
_FAST = 500.0  # milliseconds; slower ones read their weights many times in a call anyway


@dataclass(frozen=True)
class Contender:
    """One way to translate a batch. `prepare` makes the function that does it once, with so many threads."""

    name: str
    engine: str
    precision: str
    prepare: Callable[[int], Callable[[], object]]


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


def time_in_turns(functions: Sequence[Callable[[], object]], runs: int, device: torch.device) -> list[float]:
    """The median milliseconds of each, over `runs` rounds in which each has one turn, after a round that warms up.

    A fast contender's turn is two calls, of which the second is timed: the first brings its weights back into the
    caches, where they are when one model serves one sentence after another.
    """
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        _time_once(function, device)
    for _ in range(runs):
        for function, own in zip(functions, times, strict=True):
            ms = _time_once(function, device)
            own.append(_time_once(function, device) if ms < _FAST else ms)
    return [statistics.median(own) for own in times]


def _time_once(function: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) * 1000


def at_best_threads(contender: Contender, device: torch.device, most: int) -> tuple[Callable[[], object], int]:
    """The contender with the number of threads that suits it, tried in powers of two."""
    if device.type == "cuda":
        return contender.prepare(1), 1
    tried = {}
    threads = 1
    while threads <= most:
        function = contender.prepare(threads)
        trials = _TRIALS if _time_once(function, device) < _FAST else 1
        tried[threads] = time_in_turns([function], trials, device)[0], function
        threads *= 2
    best = min(tried, key=lambda count: tried[count][0])
    return tried[best][1], best


def compare(
    contenders: Sequence[Contender], device: torch.device, batch: int, target_tokens: int, runs: int, reference: str
) -> list[Row]:
    """All contenders in one run; speed-ups are over the one named `reference` of our own engine."""
    most = torch.get_num_threads()
    prepared = [at_best_threads(contender, device, most) for contender in contenders]
    medians = time_in_turns([function for function, _ in prepared], runs, device)
    of_reference = [ms for each, ms in zip(contenders, medians, strict=True) if each.name == reference]
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
            of_reference[0] / ms if of_reference else None,
            threads,
            runs,
            world.describe(device),
            torch.__version__,
        )
        for each, (_, threads), ms in zip(contenders, prepared, medians, strict=True)
    ]
