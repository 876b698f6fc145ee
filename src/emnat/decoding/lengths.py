"""Which target lengths to try: the most likely one and its neighbours on both sides."""

from __future__ import annotations

import torch
from torch import Tensor


def length_candidates(length_log_probs_BL: Tensor, count: int) -> Tensor:
    """(B, count) lengths l-b … l+b, the most likely l first; column i of the input stands for length i + 1.

    At the ends of the scale the nearest possible length is repeated: harmless, since equal candidates tie.
    """
    best_B1 = length_log_probs_BL.argmax(dim=1, keepdim=True) + 1
    offsets_C = torch.arange(count, device=best_B1.device) - (count - 1) // 2
    by_nearness = offsets_C.abs().argsort(stable=True)
    return (best_B1 + offsets_C[by_nearness]).clamp(1, length_log_probs_BL.shape[1])
