"""Adam with decoupled weight decay; warm-up, then the inverse square root of the step."""

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
    """Of step 1, 2, …: linear up to the peak at `warmup`, then falling with the square root."""
    return settings.learning_rate * min(step / settings.warmup, math.sqrt(settings.warmup / step))
