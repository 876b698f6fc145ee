"""The k best labels of every position, without sorting whole vocabularies.

Both functions read the scores once, in blocks: the k best are in the k blocks with the highest maxima.
"""

from __future__ import annotations

from torch import Tensor

_BLOCKS = (64, 50, 48, 40, 32, 25, 24, 20, 16)


def top_k(scores_NV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `topk` over the last dimension."""
    block = _block_size(scores_NV.shape[-1], 2 * count)
    if block is None:
        values, indices = scores_NV.topk(count, dim=-1)
        return values, indices
    blocks_NXY = scores_NV.view(*scores_NV.shape[:-1], -1, block)
    best_NK = blocks_NXY.amax(-1).topk(count, dim=-1, sorted=False).indices
    candidates_NKY = blocks_NXY.gather(-2, best_NK[..., None].expand(*best_NK.shape, block))
    values, positions_NK = candidates_NKY.flatten(-2).topk(count, dim=-1)
    return values, best_NK.gather(-1, positions_NK // block) * block + positions_NK % block


def top_k_sums(starts_BK: Tensor, scores_BKV: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best of all sums start + score of a sentence, in no order: values, rows (of K), labels, (B, count) each."""
    beams, labels = scores_BKV.shape[1:]
    block = _block_size(labels, 2) or 1
    blocks_BXY = scores_BKV.view(len(scores_BKV), -1, block)
    per_row = labels // block
    maxima_BX = (blocks_BXY.amax(-1).view(-1, beams, per_row) + starts_BK[..., None]).flatten(1)
    best_BC = maxima_BX.topk(count, dim=1, sorted=False).indices
    candidates_BCY = blocks_BXY.gather(1, best_BC[..., None].expand(*best_BC.shape, block))
    sums_BCY = candidates_BCY + starts_BK.gather(1, best_BC // per_row)[..., None]
    values_BC, positions_BC = sums_BCY.flatten(1).topk(count, dim=1, sorted=False)
    chosen_BC = best_BC.gather(1, positions_BC // block)
    return values_BC, chosen_BC // per_row, chosen_BC % per_row * block + positions_BC % block


def _block_size(labels: int, at_least: int) -> int | None:
    """One that divides the labels into at least so many blocks."""
    return next((size for size in _BLOCKS if labels % size == 0 and labels // size >= at_least), None)
