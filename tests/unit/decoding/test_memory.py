"""What decoding does when memory runs out (really: test_on_gpu.py)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emnat.data.store import Ints
from emnat.decoding.engine import halved_until_it_fits
from emnat.errors import UserError


@given(st.integers(1, 200), st.integers(1, 200))
def test_batches_shrink_until_they_fit(count: int, fits: int) -> None:
    """Every index is worked on once, in order, in parts no smaller than they have to be."""

    def double(part: Ints) -> Ints:
        if len(part) > fits:
            raise torch.OutOfMemoryError
        return part * 2

    found = list(halved_until_it_fits(np.arange(count), double))
    assert np.array_equal(np.concatenate([part for part, _ in found]), np.arange(count))
    assert all(np.array_equal(result, part * 2) for part, result in found)
    assert all(len(part) >= min(count, fits // 2) for part, _ in found)


def test_a_single_sentence_that_does_not_fit_is_said() -> None:
    def fail(part: Ints) -> Ints:
        raise torch.OutOfMemoryError

    with pytest.raises(UserError, match="single sentence"):
        list(halved_until_it_fits(np.arange(5), fail))
