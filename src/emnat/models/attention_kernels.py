"""Attention of one new position over those before it, as a Triton kernel, for search on a GPU.

The rows of a search change places at every step. Instead of moving their keys and values, each row knows where its own
lie: `rows_NT[n, t]` is the row of the buffers in which position t of row n was written.
Shapes as in layers.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 32  # positions read at a time; most sentences have no more


def attend(query_NH1d: Tensor, keys_values_2NHTd: Tensor, rows_NT: Tensor, position_1: Tensor) -> Tensor:
    """(N, H, 1, d), over positions up to and with the one at `position_1`."""
    rows, heads, _, size = query_NH1d.shape
    query_NHd = query_NH1d[:, :, 0]
    attended_NHd = torch.empty((rows, heads, size), dtype=query_NH1d.dtype, device=query_NH1d.device)
    keys, values = keys_values_2NHTd
    _attend_kernel[(rows, heads)](
        query_NHd,
        keys,
        values,
        rows_NT,
        position_1,
        attended_NHd,
        query_NHd.stride(0),
        query_NHd.stride(1),
        keys.stride(0),
        keys.stride(1),
        rows_NT.stride(0),
        size**-0.5,
        heads,
        size,
        _BLOCK,
        num_warps=1,
    )
    return attended_NHd[:, :, None]


@triton.jit
def _attend_kernel(
    query,
    keys,
    values,
    rows,
    position,
    out,
    query_row,
    query_head,
    cache_row,
    cache_head,
    rows_row,
    scale,
    heads,
    size: tl.constexpr,
    block: tl.constexpr,
):
    """One row and head. The softmax is kept as a running maximum, sum and weighted sum of values."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(position).to(tl.int32) + 1
    c = tl.arange(0, size)
    q = tl.load(query + row * query_row + head * query_head + c).to(tl.float32) * scale
    highest = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    summed = tl.zeros((size,), tl.float32)
    for start in range(0, length, block):
        t = start + tl.arange(0, block)
        inside = t < length
        where = tl.load(rows + row * rows_row + t, mask=inside, other=0).to(tl.int64)
        at = (where * cache_row + head * cache_head + t * size)[:, None] + c[None, :]
        k = tl.load(keys + at, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + at, mask=inside[:, None], other=0.0).to(tl.float32)
        s = tl.where(inside, tl.sum(k * q[None, :], 1), float("-inf"))
        new_highest = tl.maximum(highest, tl.max(s, 0))
        weights = tl.exp(s - new_highest)
        kept = tl.exp(highest - new_highest)
        total = total * kept + tl.sum(weights, 0)
        summed = summed * kept + tl.sum(weights[:, None] * v, 0)
        highest = new_highest
    tl.store(out + (row * heads + head) * size + c, (summed / total).to(out.dtype.element_ty))
