"""The plain decoders: the best token of every position, and the same with repeats collapsed afterwards."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax_decode(log_probs_BTV: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Best tokens (B, T), 0 after each length, and their summed scores (B,)."""
    scores_BT, tokens_BT = log_probs_BTV.max(dim=-1)
    inside_BT = torch.arange(tokens_BT.shape[1], device=lengths_B.device) < lengths_B[:, None]
    return tokens_BT.masked_fill(~inside_BT, 0), torch.where(inside_BT, scores_BT, 0.0).sum(1)


def collapse_repeats(tokens_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Each run of equal neighbours becomes one token (post-de-duplication): tokens (B, T) and their new lengths."""
    positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    keep_BT = positions_T < lengths_B[:, None]
    keep_BT[:, 1:] &= tokens_BT[:, 1:] != tokens_BT[:, :-1]
    # A stable sort brings the kept positions to the front in their order.
    order_BT = torch.argsort(~keep_BT, dim=1, stable=True)
    kept_lengths_B = keep_BT.sum(1)
    collapsed_BT = tokens_BT.gather(1, order_BT)
    return collapsed_BT.masked_fill(positions_T >= kept_lengths_B[:, None], 0), kept_lengths_B
