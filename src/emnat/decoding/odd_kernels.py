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
        chunks = triton.next_power_of_2(triton.cdiv(labels, block))
        _top_3_kernel[(batch * length,)](scores_BTV, values_BTR, labels_BTR, labels, block, chunks, num_warps=8)
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
def _top_3_kernel(scores, values, labels, count, block: tl.constexpr, chunks: tl.constexpr):
    """One position. Every lane goes through its labels (one of each chunk) and keeps the best: the work of an argmax.
    The three best labels belong to the three best lanes, so only theirs are looked at again."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * count
    lane = tl.arange(0, block)
    v = tl.load(scores + lane, mask=lane < count, other=float("-inf")).to(tl.float32)
    at = tl.where(lane < count, lane, count)
    for start in range(block, count, block):
        known = start + lane < count
        new = tl.load(scores + start + lane, mask=known, other=float("-inf")).to(tl.float32)
        better = new > v
        v, at = tl.where(better, new, v), tl.where(better, start + lane, at)

    again = tl.arange(0, 4 * chunks)  # the labels of three lanes; the last quarter is idle
    label_again = again * 0 + count
    for rank in tl.static_range(3):
        best = tl.max(v, 0)
        label = tl.min(tl.where(v == best, at, count), 0)
        mine = again // chunks == rank
        label_again = tl.where(mine, label % block + (again % chunks) * block, label_again)
        taken = at == label
        v, at = tl.where(taken, float("-inf"), v), tl.where(taken, count, at)

    label_again = tl.where(label_again < count, label_again, count)
    v = tl.load(scores + label_again, mask=label_again < count, other=float("-inf")).to(tl.float32)
    for rank in tl.static_range(3):
        best = tl.max(v, 0)
        label = tl.min(tl.where(v == best, label_again, count), 0)
        tl.store(values + row * 3 + rank, best)
        tl.store(labels + row * 3 + rank, label.to(tl.int64))
        taken = label_again == label
        v, label_again = tl.where(taken, float("-inf"), v), tl.where(taken, count, label_again)


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
def _score(place):
    """-inf is for what is forbidden (see odd.py)."""
    return tl.maximum(tl.load(place), -1e30)


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
        b0, b1, b2 = _score(scores), _score(scores + 1), _score(scores + 2)
        p0, p1, p2 = tl.load(labels), tl.load(labels + 1), tl.load(labels + 2)
        for i in range(1, length):
            n0, n1, n2 = tl.load(labels + i * 3), tl.load(labels + i * 3 + 1), tl.load(labels + i * 3 + 2)
            s0, s1, s2 = _score(scores + i * 3), _score(scores + i * 3 + 1), _score(scores + i * 3 + 2)
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
        total = tl.maximum(total, b2)
        tl.store(score + row, tl.where(total <= -5e29, float("-inf"), total))
        for back in range(1, length + 1):
            i = length - back
            tl.store(tokens + i, tl.load(labels + i * 3 + rank))
            if i > 0:
                rank = (tl.load(came_from + i) >> (rank * 2)) & 3
