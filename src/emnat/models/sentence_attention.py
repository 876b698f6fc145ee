"""Attention within and between sentences, for training on a GPU: one program a sentence and head, there and back.

Sentences are so short that all scores of a head fit into one program. Then nothing but the output is stored: going
back, the scores are made again, and no two programs add to the same place.
Shapes as in layers.py; X = 2·D, keys and values next to each other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LONGEST = 128  # positions; of more, the scores would not fit
_SIZES = (16, 32, 64, 128)  # of a head
_WARPS = {32: 2, 64: 4, 128: 8}


def fits(query_BTD: Tensor, key_value_BSX: Tensor, heads: int) -> bool:
    return (
        query_BTD.is_cuda
        and query_BTD.dtype is torch.bfloat16
        and query_BTD.shape[-1] // heads in _SIZES
        and max(query_BTD.shape[1], key_value_BSX.shape[1]) <= _LONGEST
    )


@torch.library.custom_op("emnat::attend", mutates_args=())
def attend(query_BTD: Tensor, key_value_BSX: Tensor, bias_BS: Tensor | None, causal: bool, heads: int) -> Tensor:
    """(B, T, D); `bias_BS` is 0 for positions that may be seen and -inf for others."""
    attended_BTD = query_BTD.new_empty(query_BTD.shape)
    _launch(_forward_kernel, query_BTD, key_value_BSX, bias_BS, causal, heads, attended_BTD)
    return attended_BTD


@torch.library.custom_op("emnat::attend_backward", mutates_args=())
def _attend_backward(
    gradient_BTD: Tensor, query_BTD: Tensor, key_value_BSX: Tensor, bias_BS: Tensor | None, causal: bool, heads: int
) -> tuple[Tensor, Tensor]:
    query_gradient, key_value_gradient = query_BTD.new_empty(query_BTD.shape), query_BTD.new_empty(key_value_BSX.shape)
    of_others = gradient_BTD.contiguous(), query_gradient, key_value_gradient
    _launch(_backward_kernel, query_BTD, key_value_BSX, bias_BS, causal, heads, *of_others)
    return query_gradient, key_value_gradient


@attend.register_fake
def _(query_BTD: Tensor, key_value_BSX: Tensor, bias_BS: Tensor | None, causal: bool, heads: int) -> Tensor:
    return query_BTD.new_empty(query_BTD.shape)


@_attend_backward.register_fake
def _(
    gradient_BTD: Tensor, query_BTD: Tensor, key_value_BSX: Tensor, bias_BS: Tensor | None, causal: bool, heads: int
) -> tuple[Tensor, Tensor]:
    return query_BTD.new_empty(query_BTD.shape), query_BTD.new_empty(key_value_BSX.shape)


def _remember(ctx, inputs, output) -> None:
    query_BTD, key_value_BSX, bias_BS, ctx.causal, ctx.heads = inputs
    ctx.save_for_backward(query_BTD, key_value_BSX, bias_BS)


def _go_back(ctx, gradient_BTD):
    gradients = _attend_backward(gradient_BTD, *ctx.saved_tensors, ctx.causal, ctx.heads)
    return *gradients, None, None, None


attend.register_autograd(_go_back, setup_context=_remember)


def _launch(
    kernel, query_BTD: Tensor, key_value_BSX: Tensor, bias_BS: Tensor | None, causal: bool, heads: int, *others: Tensor
) -> None:
    batch, queries, hidden = query_BTD.shape
    keys = key_value_BSX.shape[1]
    if bias_BS is None:
        bias_BS = query_BTD.new_zeros(1, keys).expand(batch, keys)
    block = max(32, triton.next_power_of_2(max(queries, keys)))
    kernel[(batch, heads)](
        query_BTD,
        key_value_BSX,
        bias_BS,
        *others,
        query_BTD.stride(0),
        query_BTD.stride(1),
        key_value_BSX.stride(0),
        key_value_BSX.stride(1),
        bias_BS.stride(0),
        queries,
        keys,
        0 if causal else keys,
        hidden,
        (hidden // heads) ** -0.5,
        hidden // heads,
        block,
        num_warps=_WARPS[block],
    )


# Without `do_not_specialize`, every length that is a multiple of 16 would be compiled once more.
_LENGTHS = ["bias_batch", "queries", "keys", "horizon"]


@triton.jit
def _tile(start, stride, rows, count, size: tl.constexpr):
    """Rows of one head; 0 beyond the last."""
    at = rows[:, None] * stride + tl.arange(0, size)[None, :]
    return tl.load(start + at, mask=(rows < count)[:, None], other=0.0)


@triton.jit
def _weights(q, k, bias, keys, horizon, scale, block: tl.constexpr):
    """The softmax, (queries, keys), of what each query may see: up to `horizon` positions after its own."""
    i = tl.arange(0, block)
    scores = tl.dot(q, tl.trans(k)) * scale
    scores += tl.load(bias + i, mask=i < keys, other=float("-inf")).to(tl.float32)[None, :]
    scores = tl.where(i[None, :] <= i[:, None] + horizon, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit(do_not_specialize=_LENGTHS)
def _forward_kernel(
    query,
    key_value,
    bias,
    out,
    query_batch,
    query_row,
    key_batch,
    key_row,
    bias_batch,
    queries,
    keys,
    horizon,
    hidden,
    scale,
    size: tl.constexpr,
    block: tl.constexpr,
):
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, block)
    key_value += batch * key_batch + head * size
    q = _tile(query + batch * query_batch + head * size, query_row, i, queries, size)
    k = _tile(key_value, key_row, i, keys, size)
    v = _tile(key_value + hidden, key_row, i, keys, size)
    weights = _weights(q, k, bias + batch * bias_batch, keys, horizon, scale, block)
    attended = tl.dot(weights.to(v.dtype), v)
    at = (batch * queries + i[:, None]) * hidden + head * size + tl.arange(0, size)[None, :]
    tl.store(out + at, attended.to(out.dtype.element_ty), mask=(i < queries)[:, None])


@triton.jit(do_not_specialize=_LENGTHS)
def _backward_kernel(
    query,
    key_value,
    bias,
    gradient,
    query_gradient,
    key_value_gradient,
    query_batch,
    query_row,
    key_batch,
    key_row,
    bias_batch,
    queries,
    keys,
    horizon,
    hidden,
    scale,
    size: tl.constexpr,
    block: tl.constexpr,
):
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i, c = tl.arange(0, block), tl.arange(0, size)
    key_value += batch * key_batch + head * size
    q = _tile(query + batch * query_batch + head * size, query_row, i, queries, size)
    k = _tile(key_value, key_row, i, keys, size)
    v = _tile(key_value + hidden, key_row, i, keys, size)
    g = _tile(gradient + batch * queries * hidden + head * size, hidden, i, queries, size)
    weights = _weights(q, k, bias + batch * bias_batch, keys, horizon, scale, block)
    of_weights = tl.dot(g, tl.trans(v))
    of_scores = (weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None]) * scale).to(q.dtype)
    of_query = tl.dot(of_scores, k).to(q.dtype)
    of_key = tl.dot(tl.trans(of_scores), q).to(q.dtype)
    of_value = tl.dot(tl.trans(weights.to(q.dtype)), g).to(q.dtype)
    at = (batch * queries + i[:, None]) * hidden + head * size + c[None, :]
    tl.store(query_gradient + at, of_query, mask=(i < queries)[:, None])
    at = (batch * keys + i[:, None]) * 2 * hidden + head * size + c[None, :]
    tl.store(key_value_gradient + at, of_key, mask=(i < keys)[:, None])
    tl.store(key_value_gradient + at + hidden, of_value, mask=(i < keys)[:, None])
