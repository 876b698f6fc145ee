"""What ODD adds to a pass: one model in one process translates with ODD and with argmax in turns.

    python benchmarks/odd_overhead.py                     # base, 32k vocabulary, batches of 1 and 64
    python benchmarks/odd_overhead.py --size toy --runs 5 # a quick look

Two processes, or two copies of a model in one, differ by more than ODD costs (caches, where memory lies).
Prints one JSON object a line; `over_argmax` is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from emnat import world
from emnat.bench.ours import Task
from emnat.bench.timing import in_turns, time_turn
from emnat.config import Decode
from emnat.decoding.engine import Engine
from emnat.decoding.exported import ExportedEngine, ExportedStudent
from emnat.export.onnx_student import save_for_onnx
from emnat.models import NAT


def engines(student: NAT, task: Task) -> dict[str, Engine | ExportedEngine]:
    precision = "bfloat16" if world.uses_bf16(task.device, task.precision) else "float32"
    found: dict[str, Engine | ExportedEngine] = {
        f"emnat, {precision}": Engine(student.to(task.device), None, task.device, task.precision, Decode())
    }
    if task.device.type == "cpu":
        for stored in ("float32", "int8"):
            with tempfile.TemporaryDirectory() as folder:
                save_for_onnx(student, Path(folder), stored)  # type: ignore[arg-type]
                loaded = ExportedStudent(Path(folder), task.vocabulary, student.max_tokens, torch.get_num_threads())
            found[f"emnat (ONNX Runtime), {stored}"] = ExportedEngine(loaded, None, Decode())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--tokens", type=int, default=25)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    device = world.choose_device("auto")
    for batch in options.batch:
        task = Task(options.size, options.vocabulary, options.tokens, batch, device, "auto")
        torch.manual_seed(0)
        student = NAT(task.settings(), task.vocabulary, task.tokens * 2).eval()
        for name, engine in engines(student, task).items():
            arguments = 1, False, np.full(batch, task.tokens)
            ways = [partial(engine.one_pass, task.sources(), way, *arguments) for way in ("argmax", "odd")]
            turns = [partial(time_turn, way, device) for way in ways]
            in_turns(turns, 3)
            argmax, odd = in_turns(turns, options.runs)
            row = {"engine": name, "batch": batch, "ms_argmax": argmax, "ms_odd": odd, "over_argmax": odd / argmax - 1}
            row |= {"runs": options.runs, "hardware": world.describe(device), "torch": torch.__version__}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
