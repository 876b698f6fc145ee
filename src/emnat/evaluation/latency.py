"""Batch-1 latency, as the paper measures it: one sentence after another, warm, the device waited for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from emnat import world
from emnat.data.store import Ints

Translate = Callable[[Sequence[Ints]], object]


def batch_1_latency(
    ways: Mapping[str, Translate], sources: Sequence[Ints], runs: int, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Of every way to translate the median over `runs` of the mean milliseconds a sentence, from ids to ids.

    They have turns, except on a GPU: there the ways of one model share what is kept from call to call (captured
    searches, room for outputs), and would be timed with each other's.
    """
    turns = [partial(_milliseconds_a_sentence, translate, sources, device) for translate in ways.values()]
    together = [[turn] for turn in turns] if device.type == "cuda" else [turns]
    times = [own for some in together for own in _timed(some, runs)]
    common = {"runs": runs, "sentences": len(sources), "hardware": world.describe(device), "torch": torch.__version__}
    return {
        name: {"ms": statistics.median(own), "ms_fastest": min(own), "ms_slowest": max(own)} | common
        for name, own in zip(ways, times, strict=True)
    }


def _timed(turns: Sequence[Callable[[], float]], runs: int) -> list[tuple[float, ...]]:
    for turn in turns:  # to get warm: on a GPU a shape is captured when it comes for the second time
        turn()
        turn()
    return in_rounds(turns, runs)


def in_rounds(turns: Sequence[Callable[[], float]], runs: int) -> list[tuple[float, ...]]:
    """What each gives in `runs` rounds, in which each has one turn: a machine that is busy now and then is busy for
    all alike."""
    rounds = [[turn() for turn in turns] for _ in range(runs)]
    return list(zip(*rounds, strict=True))


def _milliseconds_a_sentence(translate: Translate, sources: Sequence[Ints], device: torch.device) -> float:
    started = time.perf_counter()
    for source in sources:
        translate([source])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) * 1000 / len(sources)
