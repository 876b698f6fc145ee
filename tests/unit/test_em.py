"""Convergence and the restart branch, on scripted validation curves; no model is trained here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emnat import em
from emnat.config import EM, Config, Data
from emnat.workspace import Run


@pytest.mark.parametrize(
    ("scores", "settings", "move"),
    [
        ([20.0], EM(), "go on"),
        ([20.0, 21.0], EM(), "go on"),
        ([20.0, 21.0], EM(iterations=2), "stop"),
        ([20.0, 19.0], EM(), "restart with bounds"),
        ([20.0, 21.0, 20.5], EM(iterations=3), "restart with bounds"),
        ([20.0, 21.0], EM(free_iterations=2), "restart with bounds"),
        ([20.0, 21.0], EM(free_iterations=3), "go on"),
        ([20.0, 21.0], EM(free_iterations=2, iterations=2), "stop"),
        ([20.0, 21.0], EM(free_iterations=2, bounds=False), "go on"),
        ([20.0, 19.0], EM(free_iterations=3), "restart with bounds"),
        ([20.0, 19.0], EM(bounds=False), "stop"),
        ([20.0, 19.0], EM(bounds=False, patience=2), "go on"),
        ([20.0, 19.0, 19.5], EM(bounds=False, patience=2), "stop"),
    ],
)
def test_moves_of_the_free_branch(scores: list[float], settings: EM, move: str) -> None:
    history = [(t, "free", score) for t, score in enumerate(scores, 1)]
    assert em.next_move(history, settings) == move


def test_moves_of_the_bounded_branch() -> None:
    free = [(1, "free", 20.0), (2, "free", 22.0), (3, "free", 21.0)]
    assert em.next_move([*free, (3, "bounded", 23.0)], EM()) == "go on"
    assert em.next_move([*free, (3, "bounded", 21.5)], EM()) == "stop"
    assert em.next_move([*free, (3, "bounded", 21.5)], EM(patience=2)) == "go on"
    assert em.next_move([*free, (3, "bounded", 23.0)], EM(iterations=3)) == "stop"


class ScriptedSteps:
    """Stands in for emnat.steps: notes what is asked for, and answers validation from a script."""

    def __init__(self, curve: dict[str, float]) -> None:
        self.curve, self.calls = curve, []

    def prepare(self, run: Run) -> Any:
        return SimpleNamespace(truth="truth")

    def train_teacher(self, run: Run, corpus: Any, stage: str, targets: str, start: str | None) -> str:
        self.calls.append(("teacher", stage, targets, start))
        return f"φ {stage}"

    def distill(self, run: Run, corpus: Any, stage: str, teacher: str) -> str:
        return f"distilled by {teacher}"

    def train_student(
        self, run: Run, corpus: Any, stage: str, targets: str, start: str | None, settings: Any = None
    ) -> str:
        self.calls.append(("student", stage, targets, start))
        return f"θ {stage}"

    def measure(self, run: Run, corpus: Any, stage: str, *models: str | None) -> float:
        return self.curve.get(stage, 0.0)

    def propose(self, run: Run, corpus: Any, stage: str, *models: str) -> Any:
        return SimpleNamespace(stage=stage)

    def judge(
        self, run: Run, corpus: Any, stage: str, candidates: Any, incumbent: str, teacher: str, referee: str
    ) -> Any:
        assert (candidates.stage, teacher, referee) == (stage, f"φ {stage}", "φ free-1")
        self.calls.append(("judge", stage, incumbent))
        return SimpleNamespace(incumbent_quality=np.array([float(stage.split("-")[1])]), stage=stage)

    def select(self, run: Run, corpus: Any, stage: str, candidates: Any, incumbent: str, bounds: Any) -> str:
        bounded_by = None if bounds is None else bounds.incumbent_quality.tolist()
        self.calls.append(("select", stage, candidates.stage, bounded_by))
        return f"Y {stage}"

    def publish(self, run: Run, corpus: Any, name: str, teacher: str, student: str, referee: str) -> None:
        self.calls.append(("publish", name, student, referee))


def play(monkeypatch: pytest.MonkeyPatch, curve: dict[str, float], **settings: Any) -> tuple[em.Iteration, list[Any]]:
    steps = ScriptedSteps(curve)
    monkeypatch.setattr(em, "steps", steps)
    larger = settings.pop("larger_student", None)
    config = Config(run="x", data=Data(train=["a", "b"], valid=["a", "b"]), em=EM(**settings), larger_student=larger)
    return em.run_em(Run(Path("x"), config)), steps.calls


def test_restart_goes_back_to_the_best_iteration_with_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's Table 5: a drop at t = 5 (its 5*), then t = 5, 6 again from t = 4 with bounds."""
    curve = {"free-1": 19.5, "free-2": 22.3, "free-3": 22.9, "free-4": 23.3, "free-5": 22.9}
    curve |= {"bounded-5": 23.2, "bounded-6": 23.1}
    best, calls = play(monkeypatch, curve, iterations=9, patience=2)
    selections = [call[1:] for call in calls if call[0] == "select"]
    assert selections == [
        ("free-2", "free-1", None),
        ("free-3", "free-2", None),
        ("free-4", "free-3", None),
        ("free-5", "free-4", None),
        ("bounded-5", "free-4", [4.0]),
        ("bounded-6", "bounded-5", [4.0]),  # the bounds stay those of the best iteration
    ]
    # Only now is the referee asked, about the targets that the best iteration was trained on.
    assert [call[1:] for call in calls if call[0] == "judge"] == [("free-4", "Y free-4"), ("bounded-5", "Y bounded-5")]
    assert ("teacher", "bounded-5", "Y bounded-5", "φ free-4") in calls
    assert best.stage == "free-4"
    assert calls[-1] == ("publish", "model", "θ free-4", "φ free-1")


def test_the_bounded_branch_can_be_prescribed(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = {"free-1": 20.0, "free-2": 21.0, "bounded-3": 22.0, "bounded-4": 23.0}
    best, calls = play(monkeypatch, curve, iterations=4, free_iterations=2)
    selections = [call[1:] for call in calls if call[0] == "select"]
    assert selections == [("free-2", "free-1", None), ("bounded-3", "free-2", [2.0]), ("bounded-4", "bounded-3", [2.0])]
    assert best.stage == "bounded-4"


def test_the_best_student_may_come_from_the_bounded_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    best, _ = play(monkeypatch, {"free-1": 20.0, "free-2": 19.0, "bounded-2": 21.0, "bounded-3": 20.0})
    assert best.stage == "bounded-2"


def test_the_rule_posterior_asks_the_referee_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = {"free-1": 1.0, "free-2": 2.0, "free-3": 3.0}
    for rule, judged in (("nar", []), ("posterior", [("free-1", "truth"), ("free-2", "Y free-2")])):
        _, calls = play(monkeypatch, curve, iterations=3, rule=rule)
        assert [call[1:] for call in calls if call[0] == "judge"] == judged


def test_without_amortisation_students_learn_the_selected_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    _, calls = play(monkeypatch, {"free-1": 1.0, "free-2": 2.0}, iterations=2, amortised=False)
    assert [call[1:3] for call in calls if call[0] == "student"] == [
        ("free-1", "distilled by φ free-1"),
        ("free-2", "Y free-2"),
    ]


def test_larger_student_goes_on_from_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    _, calls = play(monkeypatch, {"free-1": 1.0, "free-2": 2.0}, iterations=2, larger_student={"size": "base"})
    assert ("student", "larger", "distilled by φ free-2", "θ free-2") in calls
    assert ("publish", "larger/model", "θ larger", "φ free-1") in calls
