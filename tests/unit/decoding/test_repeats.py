from __future__ import annotations

from itertools import groupby

import torch
from hypothesis import given
from hypothesis import strategies as st

from emnat.decoding import argmax_decode, collapse_repeats, length_candidates


@given(st.lists(st.lists(st.integers(1, 3), max_size=8), min_size=1, max_size=5))
def test_collapse_equals_groupby(rows: list[list[int]]) -> None:
    width = max(1, *map(len, rows))
    tokens_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    collapsed_BT, lengths_B = collapse_repeats(tokens_BT, torch.tensor([len(row) for row in rows]))
    for row, collapsed, length in zip(rows, collapsed_BT.tolist(), lengths_B.tolist(), strict=True):
        wanted = [token for token, _ in groupby(row)]
        assert collapsed == wanted + [0] * (width - len(wanted))
        assert length == len(wanted)


def test_argmax_sums_the_scores_inside_the_length() -> None:
    scores_BTV = torch.tensor([[[1.0, 2.0], [5.0, 3.0], [9.0, 9.0]]])
    tokens_BT, score_B = argmax_decode(scores_BTV, torch.tensor([2]))
    assert tokens_BT.tolist() == [[1, 0, 0]]
    assert score_B.item() == 7.0


def test_length_candidates_surround_the_best_and_stay_possible() -> None:
    log_probs_BL = torch.full((3, 20), -9.0)
    log_probs_BL[0, 9] = log_probs_BL[1, 0] = log_probs_BL[2, 19] = 0.0
    middle, low, high = length_candidates(log_probs_BL, 9).tolist()
    assert middle[0] == 10
    assert sorted(middle) == list(range(6, 15))
    assert set(low) == {1, 2, 3, 4, 5}
    assert set(high) == {16, 17, 18, 19, 20}
    assert length_candidates(log_probs_BL, 1)[:, 0].tolist() == [10, 1, 20]
