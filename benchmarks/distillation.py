"""Sentences a second of distilling (M-step) and of proposing and scoring candidates (E-step), with random weights.

    python benchmarks/distillation.py --sentences 40000            # on a GPU
    python benchmarks/distillation.py --sentences 200 --size toy   # a quick look on a CPU

Sources and outputs have `--tokens` tokens each; outputs are forced to that length, so that weights do not matter. The
E-step is the teacher's k-best list, scored by the student, and the current target, scored by both. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from emnat import world
from emnat.config import Decode, Model
from emnat.data import collate_sources
from emnat.decoding import Translator
from emnat.decoding.engine import halved_until_it_fits
from emnat.evaluation import log_probs_of_candidates
from emnat.models import NAT, Teacher


def seconds(function: Any, device: torch.device) -> float:
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=40_000)
    parser.add_argument("--tokens", type=int, default=23)
    parser.add_argument("--size", default="small")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = world.choose_device(given.device)
    torch.manual_seed(0)
    settings = Model.model_validate({"size": given.size})
    models = [kind(settings, given.vocabulary, given.tokens * 2).to(device).eval() for kind in (NAT, Teacher)]
    student, teacher = (Translator(model, None, device, None, Decode()) for model in models)  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    sources = [random.integers(5, given.vocabulary, given.tokens) for _ in range(given.sentences)]
    lengths = np.full(given.sentences, given.tokens)

    def distil() -> None:
        teacher.engine.search_best(sources, 20, lengths)

    def propose() -> None:
        for batch in teacher.engine.plan(lengths, given.candidates):
            for rows, found in halved_until_it_fits(
                batch, lambda part: teacher.engine.search(sources, part, given.candidates, lengths[part])
            ):
                incumbents = found.tokens_MKT[:, :1], found.lengths_MK[:, :1]
                tokens, sizes = (
                    torch.cat(pair, 1) for pair in zip((found.tokens_MKT, found.lengths_MK), incumbents, strict=True)
                )
                ids, ends = (part.to(device) for part in collate_sources(sources, rows))
                log_probs_of_candidates((student,), (ids, ends), tokens, sizes)
                log_probs_of_candidates((teacher,), (ids, ends), tokens[:, -1:], sizes[:, -1:])

    rows = []
    for name, function in (
        ("distilling, beam 20", distil),
        (f"E-step: {given.candidates}-best, scored by the student", propose),
    ):
        seconds(function, device)  # once, so that everything is set up
        times = [seconds(function, device) for _ in range(3)]
        rows.append(
            {
                "name": name,
                "device": world.describe(device),
                "precision": "bfloat16" if world.uses_bf16(device, "auto") else "float32",
                "size": given.size,
                "vocabulary": given.vocabulary,
                "target_tokens": given.tokens,
                "sentences": given.sentences,
                "sentences_per_s": given.sentences / sorted(times)[1],
                "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
                "torch": torch.__version__,
            }
        )
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
