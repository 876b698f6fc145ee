"""The rules against direct float64 (or, where that underflows, high-precision) computation."""

from __future__ import annotations

from typing import get_args

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from emnat.config import EM, Rule
from emnat.selection import CandidateScores, select_candidates

log_probs = arrays(np.float32, (4, 5), elements=st.integers(-160, -2).map(lambda n: n / 8))


lengths = arrays(np.int64, (4, 5), elements=st.integers(0, 60))
EQUAL = np.ones((1, 1), np.int64)  # for examples in which lengths do not matter


def direct(rule: str, alpha: float, student: float, teacher: float, quality: float, length: float) -> mpmath.mpf:
    penalty = (mpmath.mpf(6 + length) / 6) ** alpha
    if rule == "nar":
        return mpmath.mpf(student) / penalty
    if rule == "ratio":
        return mpmath.mpf(student) - teacher
    if rule == "posterior":
        return (mpmath.mpf(student) + mpmath.mpf("0.5") * quality) / penalty
    return mpmath.exp(teacher) * mpmath.log(mpmath.exp(student) / mpmath.exp(teacher))


@pytest.mark.parametrize("rule", get_args(Rule))
@given(log_probs, log_probs, log_probs, lengths, st.sampled_from([0.0, 1.5]), st.sampled_from([1.0, 100.0]))
def test_rules_choose_what_the_formula_chooses(
    rule: Rule,
    student: np.ndarray,
    teacher: np.ndarray,
    quality: np.ndarray,
    lengths: np.ndarray,
    alpha: float,
    scale: float,
) -> None:
    """With scale 100 the probabilities are around e^-1000 and would underflow if anyone computed them."""
    scores = CandidateScores(student * scale, teacher * scale, quality * scale)
    alpha = alpha if rule in ("nar", "posterior") else 0.0
    settings = EM(rule=rule, posterior_weight=0.5, length_penalty=alpha)
    chosen = select_candidates(scores, lengths, settings, bounds=None, incumbent=None)
    columns = (scores.student, scores.teacher, scores.quality, lengths)
    with mpmath.workdps(60):
        for row, choice in enumerate(chosen):
            values = [direct(rule, alpha, *(float(column[row, k]) for column in columns)) for k in range(5)]
            assert mpmath.almosteq(values[choice], max(values), 1e-12)


def test_kl_prefers_improbable_candidates_as_the_design_says() -> None:
    """log p -10/-20 gives -4.5e-4, -30/-60 gives -2.8e-12, which wins: why this rule is not the default."""
    scores = CandidateScores(np.array([[-20.0, -60.0]]), np.array([[-10.0, -30.0]]), np.zeros((1, 2)))
    assert select_candidates(scores, EQUAL, EM(rule="kl"), None, None).tolist() == [1]
    assert select_candidates(scores, EQUAL, EM(rule="nar"), None, None).tolist() == [0]


def test_plain_sums_prefer_the_shorter_and_a_length_penalty_need_not() -> None:
    """Ten tokens at -1 each against twelve at -0.9 each."""
    scores = CandidateScores(np.array([[-10.0, -10.8]]), np.full((1, 2), -3.0))
    for alpha, choice in ((0.0, 0), (1.0, 1)):
        settings = EM(length_penalty=alpha)
        assert select_candidates(scores, np.array([[10, 12]]), settings, None, None).tolist() == [choice]


def test_missing_candidates_are_never_chosen() -> None:
    student = np.array([[-1.0, -5.0, -9.0]])
    teacher = np.array([[-np.inf, -3.0, -2.0]])
    for rule in get_args(Rule):
        scores = CandidateScores(student, teacher, np.full((1, 3), -1.0))
        assert select_candidates(scores, EQUAL, EM(rule=rule), None, None)[0] != 0


def test_bounds_filter_and_the_incumbent_always_passes() -> None:
    student = np.array([[-1.0, -2.0, -8.0], [-1.0, -2.0, -8.0], [-4.0, -2.0, -1.0]])
    quality = np.array([[-9.0, -4.0, -5.0], [-9.0, -9.0, -5.0], [-1.0, -1.0, -5.0]])
    scores = CandidateScores(student, np.full((3, 3), -3.0), quality)
    incumbent = 2
    free = select_candidates(scores, EQUAL, EM(), bounds=None, incumbent=incumbent)
    assert free.tolist() == [0, 0, 1]  # the incumbent does not compete without bounds
    bounded = select_candidates(scores, EQUAL, EM(), bounds=quality[:, incumbent], incumbent=incumbent)
    assert bounded.tolist() == [1, 2, 2]


def test_all_candidates_below_the_bound_keeps_the_incumbent() -> None:
    scores = CandidateScores(np.full((1, 3), -1.0), np.full((1, 3), -1.0), np.full((1, 3), -5.0))
    assert select_candidates(scores, EQUAL, EM(), bounds=np.array([0.0]), incumbent=2).tolist() == [2]
