"""The convergence plot."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import Mock

import pytest

from emnat.report.collect import RunResults, Stage
from emnat.report.plots import convergence_svg


def stage(t: int) -> Stage:
    bleu = {decoder: {"bleu": 30.0 + t, "length_ratio": 1.0} for decoder in ("argmax", "odd", "beam_5")}
    measures: dict[str, Any] = {"ncm": 1 / t, "ncm_unseen": 2 / t, "cm": 1.0, "validation": 30.0}
    measures |= {"student": bleu, "teacher": bleu}
    return Stage(f"free-{t}", t, "free", measures, {})


@pytest.mark.parametrize("iterations", [1, 2, 4, 12])
def test_iterations_are_whole_numbers(iterations: int) -> None:
    drawing = convergence_svg(RunResults(Mock(), [stage(t) for t in range(1, iterations + 1)], None, None))
    axes = re.split(r'<g id="matplotlib\.axis_\d+">', drawing)[1::2]  # x, y, x, y, …
    for axis in axes:
        *ticks, name = re.findall("<!-- (.*) -->", axis.partition('<g id="patch_')[0])  # letters are drawn as paths
        assert name == "EM iteration t"
        assert ticks
        assert {int(tick) for tick in ticks} <= set(range(iterations + 2))
