"""Batch-1 latency, as the paper measures it: one sentence after another, warm, the device waited for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from emnat import world
from emnat.data.store import Ints


def batch_1_latency(
    translate: Callable[[Sequence[Ints]], object], sources: Sequence[Ints], runs: int, device: torch.device
) -> dict[str, Any]:
    """The median over `runs` of the mean milliseconds a sentence, from ids to ids."""

    def once() -> float:
        started = time.perf_counter()
        for source in sources:
            translate([source])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - started) * 1000 / len(sources)

    once()
    times = [once() for _ in range(runs)]
    return {
        "ms": statistics.median(times),
        "runs": runs,
        "sentences": len(sources),
        "hardware": world.describe(device),
        "torch": torch.__version__,
    }
