from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emnat.decoding.top import top_k, top_k_sums


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 700), st.integers(1, 20), st.sampled_from([2, 50, 1 << 30]), st.integers(0, 2**31))
def test_equals_topk(labels: int, count: int, levels: int, seed: int) -> None:
    """The same values in the same order, and labels that have them, each once; with few levels, most values tie."""
    count = min(count, labels)
    scores_NV = torch.randint(0, levels, (3, labels), generator=torch.Generator().manual_seed(seed)).double()
    scores_NV[0, : labels - count] = -torch.inf
    values_NK, labels_NK = top_k(scores_NV, count)
    assert torch.equal(values_NK, scores_NV.topk(count).values)
    assert torch.equal(scores_NV.gather(1, labels_NK), values_NK)
    assert all(len(set(row)) == count for row in labels_NK.tolist())


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 400), st.integers(1, 7), st.sampled_from([2, 50, 1 << 30]), st.integers(0, 2**31))
def test_sums_equal_topk_of_all_sums(labels: int, beams: int, levels: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    scores_BKV = torch.randint(0, levels, (3, beams, labels), generator=random).double()
    starts_BK = torch.randint(0, levels, (3, beams), generator=random).double()
    scores_BKV[0, :, labels // 2 :] = -torch.inf
    starts_BK[1, 1:] = -torch.inf
    values_BC, rows_BC, labels_BC = top_k_sums(starts_BK, scores_BKV, beams)
    sums_BX = (starts_BK[..., None] + scores_BKV).flatten(1)
    assert torch.equal(values_BC.sort(descending=True).values, sums_BX.topk(beams).values)
    assert torch.equal(sums_BX.gather(1, rows_BC * labels + labels_BC), values_BC)
    assert all(len(set(row)) == beams for row in (rows_BC * labels + labels_BC).tolist())
