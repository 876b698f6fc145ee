"""Training state on disk, as safetensors: written under a temporary name, flushed, renamed. Reading executes nothing.

Each file carries a checksum of its tensors, which safetensors itself does not check.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from emnat.artifacts import sync
from emnat.errors import UserError
from emnat.models.storage import write_tensors

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
    tensors, metadata = _load(folder / STATE)
    progress = Progress(**json.loads(metadata["progress"]))
    progress.scores = [(int(step), float(score)) for step, score in progress.scores]
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
    return _load(path)[0]


def average(paths: list[Path]) -> Weights:
    """The mean of several snapshots, summed in float64."""
    total: Weights = {}
    for path in paths:
        for name, value in load_weights(path).items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + value.double()
    return {name: (value / len(paths)).float() for name, value in total.items()}


def _save(tensors: Weights, path: Path, metadata: dict[str, str]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    tensors = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    write_tensors(tensors, temporary, metadata | {"sha256": _digest(tensors, metadata)})
    sync(temporary)
    temporary.replace(path)


def _load(path: Path) -> tuple[Weights, dict[str, str]]:
    try:
        path.open("rb").close()  # what stands in the way is an OSError that says so; safetensors takes all for absence
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata()
        tensors = load_file(path)
        whole = metadata.pop("sha256") == _digest(tensors, metadata)
    except (FileNotFoundError, SafetensorError, KeyError, AttributeError):
        whole = False
    if not whole:
        artifact = path.parent.parent
        raise UserError(f"{path}: missing or damaged: delete {artifact} and run the command again to train it anew.")
    return tensors, metadata


def _digest(tensors: Weights, metadata: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.view(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return digest.hexdigest()
