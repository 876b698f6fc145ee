"""The paired bootstrap against one written here."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from emnat.data.grammar import draw_pairs
from emnat.evaluation import compare_outputs

REFERENCES = [target for _, target in draw_pairs(60, seed=5)]


def damaged(seed: int, share: float) -> list[str]:
    """The references with some words replaced."""
    random = np.random.default_rng(seed)
    return [" ".join("x" if random.random() < share else word for word in line.split()) for line in REFERENCES]


def own_bootstrap(before: list[str], after: list[str], samples: int) -> float:
    """How often a resampled difference, centred, is at least as large as the one seen."""
    random = np.random.default_rng(1)

    def bleu(lines: list[str], rows: np.ndarray) -> float:
        metric = BLEU(tokenize="none", force=True)
        return metric.corpus_score([lines[i] for i in rows], [[REFERENCES[i] for i in rows]]).score

    everything = np.arange(len(REFERENCES))
    seen = abs(bleu(after, everything) - bleu(before, everything))
    draws = [random.integers(0, len(REFERENCES), len(REFERENCES)) for _ in range(samples)]
    found = np.array([abs(bleu(after, rows) - bleu(before, rows)) for rows in draws])
    return float((found - found.mean() >= seen).sum() + 1) / (samples + 1)


@pytest.mark.parametrize(("before", "after", "better"), [(0.5, 0.1, True), (0.1, 0.5, False), (0.3, 0.295, False)])
def test_against_an_own_bootstrap(before: float, after: float, better: bool) -> None:
    outputs = damaged(1, before), damaged(2, after)
    found = compare_outputs(*outputs, REFERENCES, lowercase=False)
    assert found.better is better
    assert found.worse is (after - before > 0.1)
    assert found.p == pytest.approx(own_bootstrap(*outputs, samples=300), abs=0.12)


def test_equal_outputs_are_not_better() -> None:
    found = compare_outputs(damaged(1, 0.3), damaged(1, 0.3), REFERENCES, lowercase=True)
    assert found.before == found.after
    assert found.p == 1.0
    assert not found.better
