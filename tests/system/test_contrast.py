"""The paper's Experiments I and II at a small size: AR solves both, NAR solves I and fails II.

The real command, trained to success with another seed in every run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Emnat

SMALL = [
    "text.max_tokens=40",
    *(f"{model}.{key}={value}" for model in ("teacher", "student") for key, value in (
        ("encoder_layers", 2), ("decoder_layers", 2), ("hidden", 64), ("filter", 128), ("heads", 4), ("dropout", 0.0),
        ("training.tokens", 1500), ("training.learning_rate", 3e-3), ("training.warmup", 100),
        ("training.validate_every", 200), ("training.average", 2), ("training.label_smoothing", 0.0),
    )),
    "teacher.training.steps=1600",
    "student.training.steps=1500",
]  # fmt: skip


@pytest.mark.parametrize("experiment", ["I", "II"])
def test_contrast(experiment: str, seed: int, tmp_path: Path, emnat: Emnat) -> None:
    sizes = ["--pairs", 6000, "--test", 200, "--length", 6, "--seed", seed, "--run", "run"]
    emnat("synthetic", experiment, *sizes, *SMALL, cwd=tmp_path)
    found = json.loads((tmp_path / "run/results.jsonl").read_text())
    print(found)
    report = json.loads(emnat("report", "run", "--json", cwd=tmp_path).stdout)
    assert report["accuracy"] == {"AR": found["AR"], "NAR": found["NAR"]}
    assert (report["experiment"], report["seed"]) == (experiment, seed)
    assert {"contrast/teacher", "contrast/student"} <= report["seconds"].keys()
    both = emnat("report", "run", "run", cwd=tmp_path).stdout.decode()
    assert both.count(f"{100 * found['AR']:.1f} %") >= 2
    refused = emnat("translate", "run", cwd=tmp_path, check=False)
    assert refused.returncode == 2
    assert b"name run/contrast/teacher or run/contrast/student" in refused.stderr
    assert found["AR"] > 0.9
    if experiment == "I":
        assert found["NAR"] > 0.8
    else:
        assert found["NAR"] < 0.2
