"""Captured and compiled updates against plain ones."""

from __future__ import annotations

import gc

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


def test_when_memory_runs_out_batches_are_cut(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Really: the process may have an eighth of what the whole batch takes, besides what earlier tests left."""

    def loss_and_peak() -> tuple[float, int, Updates]:
        torch.manual_seed(seed)
        model, training = Teacher(SETTINGS, 50, 64).to("cuda"), Training(steps=10)
        updates = Updates(model, make_optimiser(model, training), training, torch.device("cuda"), "float32")
        torch.cuda.reset_peak_memory_stats()
        return float(updates.make([batch], 1e-3)), torch.cuda.max_memory_reserved(), updates

    def held() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    tokens, lengths = torch.randint(5, 50, (2_048, 64)), torch.full((2_048,), 64)
    batch = Batch(tokens, lengths, tokens, lengths)
    before = held()
    whole, peak, updates = loss_and_peak()
    del updates
    limit = held() + (peak - before) // 8
    assert limit < peak
    try:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
        cut, _, _ = loss_and_peak()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "batches are cut" in caplog.text
    assert cut == pytest.approx(whole, rel=2e-3)
