"""Attention over rows that lie elsewhere, against PyTorch's over rows that were moved."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("position", [0, 7, 31, 32, 95])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_attention_over_moved_rows(seed: int, size: int, position: int, dtype: torch.dtype) -> None:
    from emnat.models.attention_kernels import attend  # noqa: PLC0415  # it needs Triton

    torch.manual_seed(seed)
    rows, heads, length = 12, 4, 96
    query = torch.randn(rows, heads, 1, size, device="cuda", dtype=dtype)
    cache = torch.randn(2, rows, heads, length, size, device="cuda", dtype=dtype)
    origin = torch.randint(0, rows, (rows, length), device="cuda")
    found = attend(query, cache, origin.int(), torch.tensor([position], device="cuda"))
    here = origin[None, :, None, :, None].expand_as(cache)
    moved = cache.gather(1, here)[..., : position + 1, :].float()
    wanted = F.scaled_dot_product_attention(query.float(), moved[0], moved[1])
    assert torch.allclose(found.float(), wanted, atol=1e-5 if dtype is torch.float32 else 2e-2)
