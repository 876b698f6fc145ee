"""Training state on disk, as safetensors: written under a temporary name, flushed, renamed. No pickle."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

STATE = "state.safetensors"
BEST = "best.safetensors"
Weights = dict[str, Tensor]


@dataclass
class Progress:
    """Where a training is. Batches are a pure function of (seed, epoch), so two numbers say what comes next."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    scores: list[tuple[int, float]] = field(default_factory=list)  # (step, validation score)

    @property
    def best_step(self) -> int:
        return max(self.scores, key=lambda entry: entry[1])[0]

    def validations_since_best(self) -> int:
        return sum(1 for step, _ in self.scores if step > self.best_step)


def save_state(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": value for name, value in state.items()}
    _save(tensors, folder / STATE, {"progress": json.dumps(asdict(progress))})


def load_state(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress:
    """Continue from the last saved state, or from the start where there is none."""
    if not (folder / STATE).exists():
        return Progress()
    with safe_open(folder / STATE, "pt") as file:
        progress = Progress(**json.loads(file.metadata()["progress"]))
    progress.scores = [(int(step), float(score)) for step, score in progress.scores]
    tensors = load_file(folder / STATE)
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    described = optimiser.state_dict()
    described["state"] = {}
    for key, value in tensors.items():
        kind, index, *name = key.split(".")
        if kind == "optimiser":
            described["state"].setdefault(int(index), {})[name[0]] = value
    optimiser.load_state_dict(described)
    return progress


def snapshot_path(folder: Path, step: int) -> Path:
    return folder / f"snapshot-{step}.safetensors"


def save_weights(path: Path, model: nn.Module) -> None:
    _save(dict(model.state_dict()), path, {})


def load_weights(path: Path) -> Weights:
    return load_file(path)


def average(paths: list[Path]) -> Weights:
    """The mean of several snapshots, summed in float64."""
    total: Weights = {}
    for path in paths:
        for name, value in load_weights(path).items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + value.double()
    return {name: (value / len(paths)).float() for name, value in total.items()}


def _save(tensors: Weights, path: Path, metadata: dict[str, str]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    save_file({name: value.detach().contiguous().cpu() for name, value in tensors.items()}, temporary, metadata)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
