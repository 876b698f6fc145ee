"""Whether one output is better than another by more than chance: sacrebleu's paired bootstrap."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result

_SAMPLES, _SIGNIFICANT = 1_000, 0.05
logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # it tells every step of a test


@dataclass(frozen=True)
class Comparison:
    before: float  # BLEU
    after: float
    p: float  # of so large a difference, were the two equally good

    @property
    def better(self) -> bool:
        return self.after > self.before and self.p < _SIGNIFICANT

    @property
    def worse(self) -> bool:
        return self.after < self.before and self.p < _SIGNIFICANT

    @property
    def shown(self) -> str:
        """p, and what it does not say."""
        return f"{self.p:.3f}" + (" (worse)" if self.worse else "" if self.better else " (no)")


def compare_outputs(
    before: Sequence[str], after: Sequence[str], references: Sequence[str], lowercase: bool
) -> Comparison:
    """Of two outputs, tokenised, for the same sentences."""
    metric = BLEU(tokenize="none", lowercase=lowercase, force=True, references=[list(references)])
    systems: list[tuple[str, Sequence[str]]] = [("before", before), ("after", after)]
    _, scores = PairedTest(systems, {"BLEU": metric}, references=None, test_type="bs", n_samples=_SAMPLES)()
    first, second = scores["BLEU"]
    assert isinstance(first, Result)
    assert isinstance(second, Result)
    assert second.p_value is not None
    # sacrebleu counts samples that differ by *more* than the scores do, which are none if the outputs are the same.
    return Comparison(first.score, second.score, second.p_value if first.score != second.score else 1.0)
