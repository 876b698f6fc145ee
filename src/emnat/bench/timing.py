"""Contenders timed in turns, so that a busy machine treats them all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

_TRIALS = 3  # runs to find a contender's best number of threads


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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def time_in_turns(functions: Sequence[Callable[[], object]], runs: int, device: torch.device) -> list[float]:
    """The median milliseconds of each, over `runs` rounds in which each has one turn; two rounds warm up.

    In every turn a first call is not timed: it brings the contender's weights back into the caches, where they are when
    one model serves one sentence after another.
    """
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(-2, runs):
        for function, own in zip(functions, times, strict=True):
            _time_once(function, device)
            ms = _time_once(function, device)
            if turn >= 0:
                own.append(ms)
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
    best: tuple[float, Callable[[], object], int] | None = None
    threads = 1
    while threads <= most:
        function = contender.prepare(threads)
        (ms,) = time_in_turns([function], _TRIALS, device)
        if best is None or ms < best[0]:
            best = ms, function, threads
        threads *= 2
    assert best is not None
    return best[1], best[2]


def compare(
    contenders: Sequence[Contender], device: torch.device, batch: int, target_tokens: int, runs: int, reference: str
) -> list[Row]:
    """All contenders in one run; speed-ups are over the one named `reference` of our own engine."""
    prepared = [at_best_threads(contender, device, torch.get_num_threads()) for contender in contenders]
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
        )
        for each, (_, threads), ms in zip(contenders, prepared, medians, strict=True)
    ]
