"""Optimal de-duplicated decoding (ODD): the best sequence without equal neighbours, exactly.

Only the three best labels of a position can be part of it (the paper's Proposition 5.1), so it is a Viterbi path over
3×3 transitions. Shapes: B sentences, T positions, V labels, R = min(3, V) ranks of labels at a position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emnat.decoding.top import top_k
from emnat.errors import UserError

try:
    from emnat.decoding import odd_kernels
except ImportError:  # no Triton here
    odd_kernels = None  # type: ignore[assignment]

Array = npt.NDArray[Any]
_HOPELESS = -1e30  # in place of -inf: worse than every real score, and better than what is forbidden


def odd_decode(log_probs_BTV: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Best tokens (B, T), 0 after each length, and their summed scores (B,).

    Works on the scores of any model: log-probabilities, or logits, since normalisers are the same for every path.
    On a GPU it does not wait for the device. Where labels have no chance at all (-inf) and no sequence can be written,
    one without equal neighbours comes with the score -inf.
    """
    if log_probs_BTV.dim() != 3 or lengths_B.shape != log_probs_BTV.shape[:1]:
        found = f"{tuple(log_probs_BTV.shape)} and {tuple(lengths_B.shape)}"
        raise UserError(f"ODD takes scores of the shape (B, T, V) and lengths of the shape (B,): {found} were given.")
    log_probs_BTV = log_probs_BTV.detach()
    labels = log_probs_BTV.shape[2]
    if labels < 2 and bool((lengths_B > 1).any()):
        raise UserError("ODD needs at least 2 labels: with 1, every sequence of two positions repeats itself.")
    if log_probs_BTV.is_cuda and odd_kernels is not None and labels >= 3:
        return odd_kernels.best_path(*odd_kernels.top_3(log_probs_BTV), lengths_B)
    return best_path(*top_k(log_probs_BTV, min(3, labels)), lengths_B)


def best_path(scores_BTR: Tensor, labels_BTR: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """ODD from the best labels of every position, in falling order, and their scores.

    In numpy, whose calls on small arrays take a fraction of the time of PyTorch's.
    """
    wide_BTR = scores_BTR.float() if scores_BTR.dtype.itemsize < 4 else scores_BTR
    scores, labels, lengths = (part.cpu().numpy() for part in (wide_BTR, labels_BTR, lengths_B))
    inside = np.arange(labels.shape[1]) < lengths[:, None]
    repeats = ((labels[:, 1:, 0] == labels[:, :-1, 0]) & inside[:, 1:]).any(1)
    tokens = np.where(inside, labels[..., 0], 0)
    best = np.where(inside, scores[..., 0], 0.0).sum(1, dtype=scores.dtype)
    if repeats.any():  # without a repeat, the best labels are the best path
        tokens[repeats], best[repeats] = _viterbi(scores[repeats], labels[repeats], inside[repeats])
    return torch.from_numpy(tokens).to(labels_BTR.device), torch.from_numpy(best).to(scores_BTR.device)


def _viterbi(scores_BTR: Array, labels_BTR: Array, inside_BT: Array) -> tuple[Array, Array]:
    """Letters are axes, in order: in R'R, R' is the rank at a position and R the rank at the one before."""
    batch, length, ranks = scores_BTR.shape
    forbidden = labels_BTR[:, 1:, :, None] == labels_BTR[:, :-1, None, :]
    # Past the end of a sentence a path stays on its rank at no cost, so that walking back finds it again.
    forbidden = np.where(inside_BT[:, 1:, None, None], forbidden, ~np.eye(ranks, dtype=bool))
    cost = np.where(forbidden, -np.inf, 0.0).astype(scores_BTR.dtype).transpose(1, 0, 2, 3)  # T-1, B, R', R
    gain = np.where(inside_BT[..., None], np.maximum(scores_BTR, _HOPELESS), 0.0).astype(scores_BTR.dtype)
    gain = gain.transpose(1, 0, 2)  # T, B, R

    best_BR = gain[0]
    came_from = np.empty((length - 1, batch, ranks), np.intp)
    for t in range(length - 1):
        arriving = best_BR[:, None, :] + cost[t]
        arriving.argmax(-1, out=came_from[t])
        best_BR = arriving.max(-1) + gain[t + 1]

    rows = np.arange(batch)
    rank_TB = np.empty((length, batch), np.intp)
    rank_TB[-1] = best_BR.argmax(-1)
    for t in range(length - 2, -1, -1):
        rank_TB[t] = came_from[t, rows, rank_TB[t + 1]]
    tokens_BT = np.take_along_axis(labels_BTR, rank_TB.T[..., None], axis=2)[..., 0]
    best_B = best_BR.max(-1)
    return np.where(inside_BT, tokens_BT, 0), np.where(best_B <= _HOPELESS / 2, -np.inf, best_B)
