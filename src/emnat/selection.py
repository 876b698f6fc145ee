"""The E-step's choice: which candidate becomes the next teacher's target. Pure functions of scores.

Every rule has one signature: the student's, the teacher's and the referee's log-probabilities of the candidates,
(N, K) each, and gives a score to be maximised. Shapes: N sources, K candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emnat.config import EM
from emnat.data.store import Floats, Ints
from emnat.decoding.beam import length_penalty

# The same sequence, scored in another batch, differs by less. (A search in bf16 differs from a scoring by up to 0.1,
# so after a restart from t = 1, where the search's scores are the referee's, bounds are less exact.)
_ROUNDING = 1e-3


@dataclass(frozen=True)
class CandidateScores:
    """Log-probabilities of the candidates; -inf in `teacher` marks one that does not exist."""

    student: Floats  # log p_NAR(y|x; θ^t)
    teacher: Floats  # log p_AR(y|x; φ^t)
    quality: Floats | None = None  # Q_x(y) = log p_AR(y|x; φ^1); bounds and the rule `posterior` need it

    def of(self, rows: slice) -> CandidateScores:
        """Those of some sources."""
        quality = None if self.quality is None else self.quality[rows]
        return CandidateScores(self.student[rows], self.teacher[rows], quality)


def rule_score(settings: EM, scores: CandidateScores, lengths: Ints) -> Floats:
    student, teacher = scores.student.astype(np.float64), scores.teacher.astype(np.float64)
    penalty = length_penalty(lengths + 1.0, settings.length_penalty)  # as in a search
    if settings.rule == "nar":
        return student / penalty
    if settings.rule == "ratio":
        return student - teacher
    if settings.rule == "posterior":  # q* of the paper, with one λ for all: p_NAR · p_AR(φ^1)^λ
        assert scores.quality is not None
        with np.errstate(invalid="ignore"):  # 0 · -inf, for a candidate that does not exist
            return (student + settings.posterior_weight * scores.quality.astype(np.float64)) / penalty
    # The paper's p_AR · log(p_NAR / p_AR). Sequence probabilities underflow, but order does not need them: compare
    # sign first, then log p_AR + log |log-ratio| (larger is better where the ratio is positive, worse where negative).
    ratio = student - teacher
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = teacher + np.log(np.abs(ratio))
    return _rank_signed(np.sign(ratio), magnitude)


def select_candidates(
    scores: CandidateScores, lengths: Ints, settings: EM, bounds: Floats | None, incumbent: int | None
) -> npt.NDArray[np.int64]:
    """The chosen column for each source; `lengths` are the candidates', in tokens.

    Without bounds the incumbent (the target of this iteration, scored along with the others) does not compete.
    With bounds b̂, candidates below them are out; the incumbent passes by definition, so one always remains.
    """
    value = rule_score(settings, scores, lengths)
    allowed = np.isfinite(scores.teacher) & np.isfinite(scores.student)
    if bounds is not None:
        assert scores.quality is not None
        allowed &= scores.quality >= bounds[:, None] - _ROUNDING
    if incumbent is not None:
        allowed[:, incumbent] = bounds is not None
    # A source whose every candidate is out keeps its incumbent, or the teacher's best where there is none.
    value = np.where(allowed, value, -np.inf)
    chosen = value.argmax(axis=1)
    fallback = 0 if incumbent is None else incumbent
    return np.where(allowed.any(axis=1), chosen, fallback).astype(np.int64)


def _rank_signed(sign: Floats, magnitude: Floats) -> Floats:
    """A finite number that orders sign·exp(magnitude) within each row without computing the exponential."""
    signed = np.where(sign == 0, 0.0, np.where(sign > 0, magnitude, -magnitude))
    positions = np.lexsort((signed, sign), axis=1)
    ranks = np.empty_like(signed)
    np.put_along_axis(ranks, positions, np.arange(signed.shape[1], dtype=float)[None].repeat(len(signed), 0), axis=1)
    return ranks
