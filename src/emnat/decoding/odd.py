"""Optimal de-duplicated decoding (ODD): the best sequence without equal neighbours, exactly.

Only the three best labels of a position can be part of it (the paper's Proposition 5.1), so it is a Viterbi path over
3×3 transitions. Shapes: B sentences, T positions, V labels, R = min(3, V) ranks of labels at a position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from emnat.errors import UserError


def odd_decode(log_probs_BTV: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Best tokens (B, T), 0 after each length, and their summed scores (B,).

    Works on the scores of any model: log-probabilities, or logits, since normalisers are the same for every path.
    """
    labels, length = log_probs_BTV.shape[2], log_probs_BTV.shape[1]
    if labels < 2 and bool((lengths_B > 1).any()):
        raise UserError("ODD needs at least 2 labels: with 1, every sequence of two positions repeats itself.")
    scores_BTR, labels_BTR = log_probs_BTV.topk(min(3, labels), dim=-1)
    ranks = scores_BTR.shape[-1]
    inside_BT = torch.arange(length, device=lengths_B.device) < lengths_B[:, None]
    same_rank_R = torch.arange(ranks, device=lengths_B.device)

    best_BR = scores_BTR[:, 0]
    came_from = []  # for position t ≥ 1: which rank at t-1 the best path to each rank at t came from
    for t in range(1, length):
        equal_BRR = labels_BTR[:, t - 1, :, None] == labels_BTR[:, t, None, :]
        arriving_BRR = best_BR[:, :, None].masked_fill(equal_BRR, -torch.inf)
        reached_BR, from_BR = arriving_BRR.max(dim=1)
        inside_B1 = inside_BT[:, t, None]
        best_BR = torch.where(inside_B1, reached_BR + scores_BTR[:, t], best_BR)
        # Past the end of a sentence a path stays on its rank, so that walking back finds it again.
        came_from.append(torch.where(inside_B1, from_BR, same_rank_R))

    score_B, rank_B = best_BR.max(dim=1)
    chosen = [rank_B]
    for from_BR in reversed(came_from):
        chosen.append(from_BR.gather(1, chosen[-1][:, None])[:, 0])
    rank_BT = torch.stack(chosen[::-1], dim=1)
    tokens_BT = labels_BTR.gather(2, rank_BT[..., None])[..., 0]
    return tokens_BT.masked_fill(~inside_BT, 0), torch.where(lengths_B > 0, score_B, 0.0)
