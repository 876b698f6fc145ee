"""The results table and how it says that it was timed."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from emnat.report.collect import RunResults, Stage
from emnat.report.tables import MainRow, main_rows, print_tables, timing_note

STUDENT = {"argmax": 26.65, "dedup": 27.82, "odd": 30.29, "argmax_9": 29.44, "dedup_9": 31.62, "odd_9": 33.94}
SLOW = {"ms_fastest": 1005.0, "ms_slowest": 3005.0}


def stage(t: int, teacher: dict[str, float], gain: float = 0.0) -> Stage:
    scores = [
        {name: {"bleu": bleu + gain, "length_ratio": 1.0} for name, bleu in part.items()} for part in (STUDENT, teacher)
    ]
    for part in scores[0].values():
        part["signature"] = "nrefs:1"  # type: ignore[assignment]
    measures: dict[str, Any] = {"ncm": 1.0, "cm": 1.0, "validation": 30.0, "student": scores[0], "teacher": scores[1]}
    return Stage(f"free-{t}", t, "free", measures, {})


class Timed(RunResults):
    reported_set = "test"

    @cached_property
    def latency(self) -> dict[str, dict[str, Any]]:
        return self.run.times

    @cached_property
    def latency_of_larger(self) -> dict[str, dict[str, Any]]:
        return self.run.times_of_larger


def results(teacher: dict[str, float], ms: dict[str, float], **more: float) -> Timed:
    run = Mock(directory="runs/a-directory", times_of_larger={})
    run.config.decode.length_candidates = 9
    common = {"runs": 5, "sentences": 10, "hardware": "cpu (2 threads)", "torch": "2.13.0"} | more
    run.times = {name: {"ms": value} | common for name, value in ms.items()}
    stages = [stage(1, teacher), stage(2, teacher, gain=5.0)]
    return Timed(run, stages, stages[1], None)


def test_teachers_have_their_own_scores_and_times() -> None:
    found = main_rows(results({"greedy": 46.27, "beam_5": 47.97}, {"greedy": 8.0, "beam_5": 10.0, "odd": 2.5}))
    assert found[0] == MainRow("AR teacher (beam 5)", 47.97, ms=10.0, speed_up=1.0)
    assert found[1] == MainRow("AR teacher (greedy)", 46.27, ms=8.0, speed_up=1.25)
    assert found[-1] == MainRow("+ EM + ODD", 35.29, 38.94, ms=2.5, speed_up=4.0)


def test_a_greedy_teacher_is_told_once() -> None:
    greedy = results({"beam_1": 46.27}, {"beam_1": 8.0})
    found = main_rows(greedy)
    assert [row.name for row in found[:2]] == ["AR teacher (beam 1)", "NAT baseline (distilled)"]
    assert [greedy.baseline.row()[name] for name in ("teacher_bleu", "teacher_greedy_bleu")] == [46.27, 46.27]


def test_without_times_there_are_scores() -> None:
    untimed = results({"greedy": 46.27, "beam_5": 47.97}, {})
    assert main_rows(untimed)[0] == MainRow("AR teacher (beam 5)", 47.97)
    assert timing_note(untimed) == ""


def test_how_far_runs_lie_apart() -> None:
    scores = {"beam_5": 47.97}
    assert "median of 5 runs over 10 sentences" in timing_note(results(scores, {"odd": 2000.0}))  # of an older emnat
    assert "5 runs (up to 100% apart) over" in timing_note(results(scores, {"odd": 2000.0}, **SLOW))
    assert "median of 1 runs over" in timing_note(results(scores, {"odd": 2000.0}, **SLOW, runs=1))
    with_larger = results(scores, {"odd": 2000.0}, **SLOW)
    with_larger.run.times_of_larger = {"odd": with_larger.latency["odd"] | {"ms": 1000.0}}
    assert "(up to 200% apart)" in timing_note(with_larger)


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_80_columns_break_no_words(unit: float) -> None:
    ms = {name: unit * (2 + i) for i, name in enumerate([*STUDENT, "greedy", "beam_5"])}
    console = Console(width=80, record=True)
    print_tables(results({"greedy": 46.27, "beam_5": 47.97}, ms, **SLOW), [], console)
    shown = console.export_text().split("Convergence")[0]
    for word in (
        "AR teacher (greedy)",
        "post-de-duplication",
        "rescored",
        f"{2 * unit:.2f}",
        f"{9 * unit:.2f}",
        "4.5×",
    ):
        assert word in shown
    assert shown.count("speed-up") == 2
    assert "…" not in shown
