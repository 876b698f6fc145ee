from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emnat.decoding.top import top_k


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
    unordered_NK, _ = top_k(scores_NV, count, in_order=False)
    assert torch.equal(unordered_NK.sort(descending=True).values, values_NK)
