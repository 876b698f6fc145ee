"""Adam with decoupled weight decay; warm-up, then decay with the root of the step or in a straight line."""

from __future__ import annotations

import math

import torch
from torch import nn

from emnat.config import Training


def make_optimiser(model: nn.Module, settings: Training) -> torch.optim.AdamW:
    """The learning rate is a tensor, set anew before every update, so that a captured update sees it change."""
    device = next(model.parameters()).device
    return torch.optim.AdamW(
        model.parameters(),
        lr=torch.tensor(settings.learning_rate, device=device),
        betas=(0.9, 0.98),
        eps=1e-9,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=device.type == "cuda",
    )


def learning_rate(step: int, settings: Training) -> float:
    """Of step 1, 2, …: linear up to the peak at `warmup`, then falling; `linear` ends just above 0."""
    if step <= settings.warmup:
        return settings.learning_rate * step / settings.warmup
    if settings.decay == "sqrt":
        return settings.learning_rate * math.sqrt(settings.warmup / step)
    return settings.learning_rate * (settings.steps + 1 - step) / (settings.steps + 1 - settings.warmup)
