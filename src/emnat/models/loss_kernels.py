"""Cross-entropy with label smoothing on a GPU: the scores of a position are read once, and once more going back.

Shapes: X positions, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from emnat.text.subwords import PAD

_BLOCK = 4096  # labels read at a time


@torch.library.custom_op("emnat::token_losses", mutates_args=())
def token_losses(logits_XV: Tensor, wanted_X: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The loss of every position, 0 where padding is wanted; and its log Σ exp, for going back. Both (X,)."""
    logits_XV, (positions, labels) = logits_XV.contiguous(), logits_XV.shape
    losses_X, normalisers_X = (logits_XV.new_empty(positions, dtype=torch.float32) for _ in range(2))
    arguments = logits_XV, wanted_X, losses_X, normalisers_X, label_smoothing, labels, PAD, _BLOCK
    _forward_kernel[(positions,)](*arguments, num_warps=8)
    return losses_X, normalisers_X


def log_normalisers(logits: Tensor) -> Tensor:
    """log Σ exp over the last dimension, in one read."""
    logits_XV = logits.flatten(0, -2)
    nothing_wanted_X = torch.full((len(logits_XV),), PAD, device=logits.device)
    normalisers_X: Tensor = token_losses(logits_XV, nothing_wanted_X, 0.0)[1]
    return normalisers_X.view(logits.shape[:-1])


@torch.library.custom_op("emnat::token_losses_backward", mutates_args=())
def _token_losses_backward(
    gradient_X: Tensor, logits_XV: Tensor, wanted_X: Tensor, normalisers_X: Tensor, label_smoothing: float
) -> Tensor:
    logits_XV, gradient_XV = logits_XV.contiguous(), torch.empty_like(logits_XV, memory_format=torch.contiguous_format)
    positions, labels = logits_XV.shape
    arguments = logits_XV, wanted_X, normalisers_X, gradient_X.contiguous(), gradient_XV, label_smoothing
    _backward_kernel[(positions,)](*arguments, labels, PAD, _BLOCK, num_warps=8)
    return gradient_XV


@token_losses.register_fake
def _(logits_XV: Tensor, wanted_X: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    of_each = logits_XV.new_empty(len(logits_XV), dtype=torch.float32)
    return of_each, torch.empty_like(of_each)


@_token_losses_backward.register_fake
def _(gradient_X: Tensor, logits_XV: Tensor, wanted_X: Tensor, normalisers_X: Tensor, label_smoothing: float) -> Tensor:
    return torch.empty_like(logits_XV, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output) -> None:
    logits_XV, wanted_X, ctx.label_smoothing = inputs
    ctx.save_for_backward(logits_XV, wanted_X, output[1])


def _go_back(ctx, gradient_X, _):
    return _token_losses_backward(gradient_X, *ctx.saved_tensors, ctx.label_smoothing), None, None


token_losses.register_autograd(_go_back, setup_context=_remember)


@triton.jit
def _forward_kernel(
    logits, wanted, losses, normalisers, smoothing, labels: tl.constexpr, padding: tl.constexpr, block: tl.constexpr
):
    """log Σ exp(x) - (1 - ε)·x[wanted] - ε·mean(x). Every lane keeps a maximum, a sum of exp and a sum of its own."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * labels
    lane = tl.arange(0, block)
    highest = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    summed = tl.zeros((block,), tl.float32)
    for start in range(0, labels, block):
        inside = start + lane < labels
        x = tl.load(logits + start + lane, mask=inside, other=float("-inf")).to(tl.float32)
        summed += tl.where(inside, x, 0.0)
        new_highest = tl.maximum(highest, x)
        reached = new_highest > float("-inf")
        total = tl.where(reached, total * tl.exp(highest - new_highest) + tl.exp(x - new_highest), 0.0)
        highest = new_highest
    top = tl.max(highest, 0)
    normaliser = top + tl.log(tl.sum(total * tl.exp(highest - top), 0))
    label = tl.load(wanted + row)
    own = tl.load(logits + label).to(tl.float32)
    loss = normaliser - (1 - smoothing) * own - smoothing * tl.sum(summed, 0) / labels
    tl.store(losses + row, tl.where(label == padding, 0.0, loss))
    tl.store(normalisers + row, normaliser)


@triton.jit
def _backward_kernel(
    logits,
    wanted,
    normalisers,
    gradients,
    out,
    smoothing,
    labels: tl.constexpr,
    padding: tl.constexpr,
    block: tl.constexpr,
):
    """exp(x - log Σ exp) - (1 - ε)·[wanted] - ε/V, times the gradient of the loss."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * labels
    out += row * labels
    lane = tl.arange(0, block)
    label = tl.load(wanted + row)
    normaliser = tl.load(normalisers + row)
    factor = tl.where(label == padding, 0.0, tl.load(gradients + row))
    for start in range(0, labels, block):
        at = start + lane
        x = tl.load(logits + at, mask=at < labels, other=0.0).to(tl.float32)
        own = tl.where(at == label, 1 - smoothing, 0.0)
        gradient = (tl.exp(x - normaliser) - own - smoothing / labels) * factor
        tl.store(out + at, gradient.to(out.dtype.element_ty), mask=at < labels)
