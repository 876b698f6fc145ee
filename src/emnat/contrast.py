"""The paper's Section 4: what AR and NAR models can learn with and without multi-modality (its Table 2).

Both models learn the ground truth directly, and both are told the right target length, as in the paper.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from emnat import steps
from emnat.artifacts import read_facts, write_atomically
from emnat.data.synthetic import Experiment, accuracy
from emnat.workspace import Run
from emnat.world import choose_device, describe


def run_contrast(run: Run, experiment: Experiment) -> None:
    """Train an AR and a NAR model on a synthetic corpus; whole-sentence accuracy of each on its test set."""
    corpus = steps.prepare(run)
    models = {
        "AR": steps.train_teacher(run, corpus, "contrast", corpus.truth, start=None),
        "NAR": steps.train_student(run, corpus, "contrast", corpus.truth, start=None),
    }

    def make(folder: Path) -> dict[str, Any]:
        lengths = [len(ids) for ids in corpus.test.target_ids]
        result: dict[str, Any] = {"experiment": experiment}
        for name, trained in models.items():
            translator = steps.load(run, trained)
            outputs = translator.translate_ids(corpus.test.source_ids, decoder="argmax", exact_lengths=lengths)
            lines = [corpus.pipeline.decode_target(ids) for ids in outputs]
            write_atomically(folder / f"{name}.txt", "".join(line + "\n" for line in lines).encode())
            result[name] = accuracy(corpus.test.sources, lines, experiment)
        return result | {"hardware": describe(choose_device(run.config.device)), "torch": torch.__version__}

    folder = run.build("contrast/accuracy", [trained.artifact for trained in models.values()], make)
    write_atomically(run.directory / "results.jsonl", (json.dumps(read_facts(folder)) + "\n").encode())
