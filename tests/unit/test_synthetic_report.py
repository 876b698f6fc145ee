"""What `emnat report` makes of a synthetic run, whole, unfinished or old."""

from __future__ import annotations

from pathlib import Path

import pytest

from emnat.config import build_config
from emnat.errors import UserError
from emnat.report import collect_accuracy, is_synthetic
from emnat.workspace import open_run

FACTS = {"experiment": "II", "AR": 0.75, "NAR": 0.25, "hardware": "an abacus", "torch": "2"}


def test_synthetic_report(tmp_path: Path) -> None:
    data = {"train": ["a", "b"], "valid": ["a", "b"]}
    run = open_run(build_config({"run": str(tmp_path / "run"), "seed": 7, "data": data}, "test"))
    assert not is_synthetic(run)
    run.build("contrast/teacher", [], lambda folder: {})
    assert is_synthetic(run)
    with pytest.raises(UserError, match="nothing has been measured yet"):
        collect_accuracy(run)
    run.build("contrast/accuracy", [], lambda folder: {"AR": 1.0, "NAR": 0.0})
    with pytest.raises(UserError, match="made by an older emnat: delete it"):
        collect_accuracy(run)
    run.build("contrast/accuracy", ["contrast/teacher"], lambda folder: FACTS)
    found = collect_accuracy(run)
    assert (found["experiment"], found["seed"], found["accuracy"]) == ("II", 7, {"AR": 0.75, "NAR": 0.25})
    assert (found["hardware"], found["versions"]["torch"]) == ("an abacus", "2")
