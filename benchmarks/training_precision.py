"""What bf16 brings to training on this machine: the same updates in float32 and in bf16, in turns, in one process.

    python benchmarks/training_precision.py                        # toy and small
    python benchmarks/training_precision.py --size toy --runs 3    # a quick look

A CPU gains if it has instructions for bf16 (avx512_bf16 or amx_bf16 in /proc/cpuinfo); a GPU trains in bf16 anyway.
Prints one JSON object a line; `over_float32` is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import torch

from emnat import world
from emnat.bench.ours import Task
from emnat.bench.timing import in_turns, time_turn
from emnat.bench.training import full_batch
from emnat.config import Training
from emnat.models import NAT, Teacher
from emnat.training.optimiser import make_optimiser
from emnat.training.updates import Updates

PRECISIONS = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", default=["toy", "small"])
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    device, training = world.choose_device("auto"), Training()
    for size in options.size:
        task = Task(size, options.vocabulary, options.tokens, options.batch, device, "auto")
        batch = full_batch(task)
        for kind in (Teacher, NAT):
            torch.manual_seed(0)
            model = kind(task.settings(), task.vocabulary, task.tokens + 1).to(device)
            optimiser = make_optimiser(model, training)
            updates = [Updates(model, optimiser, training, device, precision) for precision in PRECISIONS]
            turns = [partial(time_turn, partial(each.make, [batch], 1e-4), device) for each in updates]
            medians = in_turns(turns, options.runs)
            for precision, ms in zip(PRECISIONS, medians, strict=True):
                row = {
                    "model": f"{size} {kind.kind}",
                    "precision": precision,
                    "batch": task.batch,
                    "tokens": task.tokens,
                    "vocabulary": task.vocabulary,
                    "ms_median": ms,
                    "target_tokens_per_s": task.batch * task.tokens * 1000 / ms,
                    "over_float32": medians[0] / ms,
                    "runs": options.runs,
                    "threads": torch.get_num_threads(),
                    "hardware": world.describe(device),
                    "torch": torch.__version__,
                }
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
