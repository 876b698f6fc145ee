"""Optimal de-duplicated decoding (ODD): the best sequence without equal neighbours, exactly.

Only the three best labels of a position can be part of it (the paper's Proposition 5.1), so it is a Viterbi path over
3×3 transitions. Shapes: B sentences, T positions, V labels, R = min(3, V) ranks of labels at a position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from emnat.decoding.top import top_k
from emnat.errors import UserError

try:
    from emnat.decoding import odd_kernels
except ImportError:  # no Triton here
    odd_kernels = None  # type: ignore[assignment]


def odd_decode(log_probs_BTV: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Best tokens (B, T), 0 after each length, and their summed scores (B,).

    Works on the scores of any model: log-probabilities, or logits, since normalisers are the same for every path.
    On a GPU it does not wait for the device.
    """
    labels = log_probs_BTV.shape[2]
    if labels < 2 and bool((lengths_B > 1).any()):
        raise UserError("ODD needs at least 2 labels: with 1, every sequence of two positions repeats itself.")
    if log_probs_BTV.is_cuda and odd_kernels is not None and labels >= 3:
        return odd_kernels.best_path(*odd_kernels.top_3(log_probs_BTV), lengths_B)
    return best_path(*top_k(log_probs_BTV, min(3, labels)), lengths_B)


def best_path(scores_BTR: Tensor, labels_BTR: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """ODD from the best labels of every position, in falling order, and their scores."""
    inside_BT = torch.arange(labels_BTR.shape[1], device=lengths_B.device) < lengths_B[:, None]
    repeats_B = ((labels_BTR[:, 1:, 0] == labels_BTR[:, :-1, 0]) & inside_BT[:, 1:]).any(1)
    tokens_BT = labels_BTR[..., 0].masked_fill(~inside_BT, 0)
    score_B = torch.where(inside_BT, scores_BTR[..., 0], 0.0).sum(1)
    rows = repeats_B.nonzero()[:, 0]
    if len(rows):  # without a repeat, the best labels are the best path
        tokens_BT[rows], score_B[rows] = _viterbi(scores_BTR[rows], labels_BTR[rows], inside_BT[rows])
    return tokens_BT, score_B


def _viterbi(scores_BTR: Tensor, labels_BTR: Tensor, inside_BT: Tensor) -> tuple[Tensor, Tensor]:
    equal_BTRR = labels_BTR[:, :-1, :, None] == labels_BTR[:, 1:, None, :]
    # Past the end of a sentence a path stays on its rank at no cost, so that walking back finds it again.
    stay_RR = ~torch.eye(scores_BTR.shape[-1], dtype=torch.bool, device=scores_BTR.device)
    forbidden_BTRR = torch.where(inside_BT[:, 1:, None, None], equal_BTRR, stay_RR)
    cost_TBRR = torch.zeros(forbidden_BTRR.shape, device=scores_BTR.device).masked_fill_(forbidden_BTRR, -torch.inf)
    cost_TBRR = cost_TBRR.transpose(0, 1).contiguous()
    gain_TBR = torch.where(inside_BT[..., None], scores_BTR, 0.0).transpose(0, 1)

    best_BR = gain_TBR[0]
    came_from = []  # for position t ≥ 1: which rank at t-1 the best path to each rank at t came from
    for cost_BRR, gain_BR in zip(cost_TBRR, gain_TBR[1:], strict=True):
        reached_BR, from_BR = (best_BR[:, :, None] + cost_BRR).max(dim=1)
        best_BR = reached_BR + gain_BR
        came_from.append(from_BR)

    score_B, rank_B = best_BR.max(dim=1)
    chosen = [rank_B[:, None]]
    for from_BR in reversed(came_from):
        chosen.append(from_BR.gather(1, chosen[-1]))
    rank_BT = torch.cat(chosen[::-1], dim=1)
    tokens_BT = labels_BTR.gather(2, rank_BT[..., None])[..., 0]
    return tokens_BT.masked_fill(~inside_BT, 0), score_B
