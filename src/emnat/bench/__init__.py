"""Speed, side by side: our own decoders, and what a user would pick instead, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from emnat.bench.ours import AR_BEAM_5, OURS, Task, contenders
from emnat.bench.timing import compare
from emnat.bench.training import training_speed
from emnat.errors import UserError
from emnat.progress import log

__all__ = ["Task", "run_inference_bench", "run_training_bench"]


def run_inference_bench(task: Task, batches: Sequence[int], runs: int, only: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each contender (that has one of `only` in its description) and batch size.

    Peers that are not installed are left out, and a line says so.
    """
    rows: list[dict[str, Any]] = []
    for batch in batches:
        here = replace(task, batch=batch)
        rivals = contenders(here)
        if task.device.type == "cpu":
            rivals += _on_a_cpu(here)
        if only:
            described = [f"{each.name}, {each.engine}, {each.precision}" for each in rivals]
            rivals = [each for each, text in zip(rivals, described, strict=True) if any(part in text for part in only)]
            for part in only:
                if not any(part in text for text in described):
                    raise UserError(f"--only {part!r}: in no description; there are: {'; '.join(described)}.")
        log.info("timing %d contenders at batch %d", len(rivals), batch)
        rows += [row.as_json() for row in compare(rivals, task.device, batch, task.tokens, runs, (AR_BEAM_5, OURS))]
    return rows


def run_training_bench(task: Task, runs: int) -> list[dict[str, Any]]:
    return training_speed(task, runs)


def _on_a_cpu(task: Task) -> list[Any]:
    missing = [name for name in ("onnxruntime", "onnx", "transformers", "ctranslate2") if find_spec(name) is None]
    if missing:
        log.warning("left out, since not installed: %s (pip install 'emnat[bench]').", ", ".join(missing))
        return []
    from emnat.bench.exported import exported  # noqa: PLC0415  # these need the extra [bench]
    from emnat.bench.peers import peers  # noqa: PLC0415

    return exported(task) + peers(task)
