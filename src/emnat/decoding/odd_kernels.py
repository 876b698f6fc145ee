"""ODD on a GPU, in two Triton kernels: the three best labels of every position, and the best path through them.

Equal scores are settled for the smaller label, then for the better rank before, as on the CPU.
Shapes as in odd.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def top_3(scores_BTV: Tensor) -> tuple[Tensor, Tensor]:
    """The three best scores of every position, in falling order, and their labels: both (B, T, 3)."""
    scores_BTV = scores_BTV.contiguous()
    batch, length, labels = scores_BTV.shape
    values_BTR = torch.empty((batch, length, 3), dtype=torch.float32, device=scores_BTV.device)
    labels_BTR = torch.empty((batch, length, 3), dtype=torch.long, device=scores_BTV.device)
    if batch * length:
        block = min(4096, triton.next_power_of_2(labels))
        _top_3_kernel[(batch * length,)](scores_BTV, values_BTR, labels_BTR, labels, block, num_warps=8)
    return values_BTR, labels_BTR


def best_path(scores_BTR: Tensor, labels_BTR: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (B, T), 0 after each length, and their summed scores (B,)."""
    batch, length, _ = labels_BTR.shape
    tokens_BT = torch.empty((batch, length), dtype=torch.long, device=labels_BTR.device)
    score_B = torch.empty(batch, dtype=torch.float32, device=labels_BTR.device)
    came_from_BT = torch.empty((batch, length), dtype=torch.int32, device=labels_BTR.device)
    if batch:
        block = max(16, triton.next_power_of_2(length))
        _best_path_kernel[(batch,)](
            scores_BTR, labels_BTR, lengths_B, tokens_BT, score_B, came_from_BT, length, block, num_warps=1
        )
    return tokens_BT, score_B


@triton.jit
def _top_3_kernel(scores, values, labels, count, block: tl.constexpr):
    """One position: every lane keeps its three best labels, then the best lane gives up its first, three times."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    nothing = float("-inf")
    v1 = tl.full((block,), nothing, tl.float32)
    v2, v3 = v1, v1
    i1 = lane * 0 + count
    i2, i3 = i1, i1
    for start in range(0, count, block):
        at = start + lane
        v = tl.load(scores + row * count + at, mask=at < count, other=nothing).to(tl.float32)
        known = at < count
        # A label of score -inf still comes before none at all.
        first = known & ((v > v1) | (i1 == count))
        second = known & ((v > v2) | (i2 == count))
        third = known & ((v > v3) | (i3 == count))
        v3, i3 = tl.where(second, v2, tl.where(third, v, v3)), tl.where(second, i2, tl.where(third, at, i3))
        v2, i2 = tl.where(first, v1, tl.where(second, v, v2)), tl.where(first, i1, tl.where(second, at, i2))
        v1, i1 = tl.where(first, v, v1), tl.where(first, at, i1)
    for rank in tl.static_range(3):
        best = tl.max(v1, 0)
        label = tl.min(tl.where(v1 == best, i1, count), 0)
        tl.store(values + row * 3 + rank, best)
        tl.store(labels + row * 3 + rank, label.to(tl.int64))
        taken = i1 == label
        v1, i1 = tl.where(taken, v2, v1), tl.where(taken, i2, i1)
        v2, i2 = tl.where(taken, v3, v2), tl.where(taken, i3, i2)
        v3, i3 = tl.where(taken, nothing, v3), tl.where(taken, count, i3)


@triton.jit
def _arrive(b0, b1, b2, p0, p1, p2, label):
    """The best way to `label` from ranks with labels p and scores b: its score and its rank."""
    a0 = tl.where(p0 == label, float("-inf"), b0)
    a1 = tl.where(p1 == label, float("-inf"), b1)
    a2 = tl.where(p2 == label, float("-inf"), b2)
    best, rank = a0, 0
    rank = tl.where(a1 > best, 1, rank)
    best = tl.maximum(best, a1)
    rank = tl.where(a2 > best, 2, rank)
    return tl.maximum(best, a2), rank


@triton.jit
def _best_path_kernel(scores, labels, lengths, tokens, score, came_from, size, block: tl.constexpr):
    """One sentence. The Viterbi recursion runs in registers; where it came from is kept as 2 bits a rank."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row).to(tl.int32)
    scores += row * size * 3
    labels += row * size * 3
    tokens += row * size
    came_from += row * size
    t = tl.arange(0, block)
    best_label = tl.load(labels + t * 3, mask=t < length, other=0)
    before = tl.load(labels + t * 3 - 3, mask=(t > 0) & (t < length), other=-1)
    tl.store(tokens + t, best_label, mask=t < size)
    repeats = tl.sum((best_label == before).to(tl.int32) * ((t > 0) & (t < length)).to(tl.int32), 0)
    if repeats == 0:  # the best labels are the best path
        tl.store(score + row, tl.sum(tl.load(scores + t * 3, mask=t < length, other=0.0), 0))
    else:
        b0, b1, b2 = tl.load(scores), tl.load(scores + 1), tl.load(scores + 2)
        p0, p1, p2 = tl.load(labels), tl.load(labels + 1), tl.load(labels + 2)
        for i in range(1, length):
            n0, n1, n2 = tl.load(labels + i * 3), tl.load(labels + i * 3 + 1), tl.load(labels + i * 3 + 2)
            s0, s1, s2 = tl.load(scores + i * 3), tl.load(scores + i * 3 + 1), tl.load(scores + i * 3 + 2)
            c0, r0 = _arrive(b0, b1, b2, p0, p1, p2, n0)
            c1, r1 = _arrive(b0, b1, b2, p0, p1, p2, n1)
            c2, r2 = _arrive(b0, b1, b2, p0, p1, p2, n2)
            tl.store(came_from + i, r0 | (r1 << 2) | (r2 << 4))
            b0, b1, b2 = c0 + s0, c1 + s1, c2 + s2
            p0, p1, p2 = n0, n1, n2
        tl.debug_barrier()  # what one lane wrote, all lanes read now
        total, rank = b0, 0
        rank = tl.where(b1 > total, 1, rank)
        total = tl.maximum(total, b1)
        rank = tl.where(b2 > total, 2, rank)
        tl.store(score + row, tl.maximum(total, b2))
        for back in range(1, length + 1):
            i = length - back
            tl.store(tokens + i, tl.load(labels + i * 3 + rank))
            if i > 0:
                rank = (tl.load(came_from + i) >> (rank * 2)) & 3
