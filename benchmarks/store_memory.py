"""Memory and time of the data layer on a large corpus: write a store, plan an epoch, make batches.

python benchmarks/store_memory.py 5000000
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from emnat.data import Sequences, SequenceWriter, collate, plan_epoch


def peak() -> str:
    return f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"


def main(pairs: int) -> None:
    random = np.random.default_rng(1)
    print(f"start: {peak()}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.monotonic()
        for side in ("source", "target"):
            with SequenceWriter(folder, side, 32_000) as writer:
                for length in random.integers(5, 55, pairs):
                    writer.append(random.integers(5, 32_000, length))
        size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
        print(f"{pairs:,} pairs written ({size:,.0f} MiB on disk) in {time.monotonic() - started:.0f} s, {peak()}")
        started = time.monotonic()
        sources, targets = Sequences(folder, "source"), Sequences(folder, "target")
        plan = plan_epoch(sources.lengths, targets.lengths, 16_384, seed=1, epoch=0)
        print(f"{len(plan):,} batches planned in {time.monotonic() - started:.1f} s, {peak()}")
        started = time.monotonic()
        for planned in plan[:200]:
            collate(sources, targets, planned)
        print(f"200 batches made in {time.monotonic() - started:.1f} s, {peak()} (mapped pages of the files included)")


if __name__ == "__main__":
    main(int(sys.argv[1]))
