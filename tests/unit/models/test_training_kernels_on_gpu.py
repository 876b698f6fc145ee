"""Kernels for training and scoring, outputs and gradients, against PyTorch's own in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from emnat.models.layers import split_heads

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def gradients(output: Tensor, towards: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [output, *torch.autograd.grad(output, inputs, towards.to(output.dtype))]


def assert_close(found: list[Tensor], wanted: list[Tensor], share: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        distance, size = (float(tensor.detach().norm()) for tensor in (one.float() - other, other))
        assert distance <= share * max(size, 1.0)  # a single key has a weight of 1 and gets no gradient


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 3), (24, 24), (32, 20), (33, 61), (101, 7), (128, 128)])
@pytest.mark.parametrize("size", [16, 64])
def test_attention(seed: int, size: int, queries: int, keys: int, causal: bool) -> None:
    from emnat.models.sentence_attention import attend, fits  # noqa: PLC0415  # it needs Triton

    torch.manual_seed(seed)
    batch, heads, keys = 5, 3, queries if causal else keys
    packed = torch.randn(batch, queries, 3 * heads * size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    query = packed[..., : heads * size]  # a view into something larger, as in self-attention
    key_value = torch.randn(batch, keys, 2 * heads * size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    lengths = torch.randint(1, keys + 1, (batch,), device="cuda")
    bias = torch.where(torch.arange(keys, device="cuda") >= lengths[:, None], -torch.inf, 0.0)
    towards = torch.randn(batch, queries, heads * size, device="cuda")
    assert fits(query, key_value, heads)
    found = attend(query, key_value, None if causal else bias.bfloat16(), causal, heads)

    exact = [part.detach().float().requires_grad_() for part in (query, key_value)]
    parts = [split_heads(part, heads) for part in (exact[0], *exact[1].chunk(2, dim=-1))]
    mask = None if causal else bias[:, None, None]
    wanted = F.scaled_dot_product_attention(*parts, attn_mask=mask, is_causal=causal).transpose(1, 2).flatten(2)
    assert_close(gradients(found, towards, [query, key_value]), gradients(wanted, towards, exact), 1e-2)


@pytest.mark.parametrize("labels", [6, 4096, 10_001])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy(seed: int, labels: int, label_smoothing: float, dtype: torch.dtype) -> None:
    from emnat.models.loss_kernels import token_losses  # noqa: PLC0415

    torch.manual_seed(seed)
    logits = (torch.randn(40, labels, device="cuda") * 4).to(dtype).requires_grad_()
    wanted_labels = torch.randint(0, labels, (40,), device="cuda")
    wanted_labels[::3] = 0  # padding
    towards = torch.rand(40, device="cuda")
    exact = logits.detach().float().requires_grad_()
    settings = {"ignore_index": 0, "label_smoothing": label_smoothing, "reduction": "none"}
    wanted = F.cross_entropy(exact, wanted_labels, **settings)
    found, _ = token_losses(logits, wanted_labels, label_smoothing)
    share = 1e-5 if dtype is torch.float32 else 1e-2
    assert_close(gradients(found, towards, [logits]), gradients(wanted, towards, [exact]), share)


@pytest.mark.parametrize("labels", [6, 10_001])
def test_normalisers_pass_over_what_is_forbidden(seed: int, labels: int) -> None:
    from emnat.models.loss_kernels import log_normalisers  # noqa: PLC0415

    torch.manual_seed(seed)
    logits = torch.randn(3, 7, labels, device="cuda") * 4
    logits[..., :2] = -torch.inf
    assert_close([log_normalisers(logits)], [logits.logsumexp(-1)], 1e-6)
