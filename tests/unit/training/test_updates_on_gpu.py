"""Captured and compiled updates against plain ones."""

from __future__ import annotations

import pytest
import torch

from emnat import world
from emnat.config import Model, Training
from emnat.data import Batch
from emnat.models import NAT, AnyModel, Teacher
from emnat.training.optimiser import make_optimiser
from emnat.training.updates import Updates

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
SETTINGS = Model(encoder_layers=2, decoder_layers=2, hidden=64, filter=128, heads=4, dropout=0.0)


def losses(kind: type[AnyModel], seed: int, training: Training, device: str, precision: str) -> list[float]:
    torch.manual_seed(seed)
    model = kind(SETTINGS, 50, 20).to(device)
    batches = []
    for size in (8, 12):
        tokens = torch.randint(5, 50, (6, size))
        lengths = torch.randint(2, size + 1, (6,))
        batches.append(Batch(tokens, lengths, (tokens * (torch.arange(size) < lengths[:, None])), lengths))
    updates = Updates(model, make_optimiser(model, training), training, torch.device(device), precision)
    return [float(updates.make([batches[step % 2]], 1e-3)) for step in range(12)]


@pytest.mark.parametrize("steps", [10, 10_000])  # many steps: compiled
@pytest.mark.parametrize("kind", [Teacher, NAT])
def test_gpu_updates_follow_cpu_updates(seed: int, kind: type[AnyModel], steps: int) -> None:
    training = Training(steps=steps)
    plain = losses(kind, seed, training, "cpu", "float32")
    assert losses(kind, seed, training, "cuda", "float32") == pytest.approx(plain, rel=2e-3)
    assert losses(kind, seed, training, "cuda", "bfloat16") == pytest.approx(plain, rel=3e-2)


@pytest.mark.parametrize("kind", [Teacher, NAT])
def test_deterministic_mode_repeats_every_bit(seed: int, kind: type[AnyModel]) -> None:
    world.be_deterministic()
    try:
        first, second = (losses(kind, seed, Training(steps=10_000), "cuda", "bfloat16") for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert first == second
