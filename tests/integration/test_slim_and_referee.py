"""A slim run goes on as a whole one where the referee is asked: by the rule `posterior`, and by bounds, which are those
of an iteration long past. Real steps on a tiny corpus; only what validation says is made up."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emnat import em, steps
from emnat.config import build_config
from emnat.data import grammar
from emnat.slim import slim_run
from emnat.workspace import Run, open_run

RISING = {f"free-{t}": float(t) for t in range(1, 6)}
DROPPING = {"free-1": 1.0, "free-2": 3.0, "free-3": 2.0, "bounded-3": 4.0, "bounded-4": 5.0, "bounded-5": 6.0}


def begin(folder: Path, settings: dict[str, Any]) -> Run:
    grammar.write_corpus(folder / "corpus", train=60, valid=5, test=1, seed=3)
    training = {"steps": 4, "tokens": 400, "validate_every": 2, "validation_sentences": 2, "warmup": 2}
    model = {"encoder_layers": 1, "decoder_layers": 1, "hidden": 16, "filter": 16, "heads": 2, "training": training}
    data = {name: [str(folder / f"corpus/{name}.{side}") for side in ("de", "en")] for name in ("train", "valid")}
    values = {"run": str(folder / "run"), "device": "cpu", "data": data, "teacher": model, "student": model}
    values |= {"text": {"vocabulary": 500}, "em": {"propose_beam": 3, "distill_beam": 2} | settings}
    return open_run(build_config(values, "test"))


def continued(run: Run, directory: Path, iterations: int) -> Run:
    settings = run.config.em.model_copy(update={"iterations": iterations})
    return replace(run, directory=directory, config=run.config.model_copy(update={"em": settings}))


@pytest.mark.parametrize(
    ("settings", "curve", "last"),
    [({"rule": "posterior", "bounds": False}, RISING, "free-5"), ({"rule": "nar"}, DROPPING, "bounded-5")],
)
def test_slim_run_goes_on(
    settings: dict[str, Any], curve: dict[str, float], last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(run: Run, corpus: Any, stage: str, *models: Any) -> float:
        run.build(f"{stage}/measures", [], lambda folder: {"validation": curve[stage]})
        return curve[stage]

    monkeypatch.setattr(steps, "measure", measure)
    monkeypatch.setattr(steps, "publish", lambda *models: None)
    run = begin(tmp_path, settings)
    em.run_em(continued(run, run.directory, 4))
    shutil.copytree(run.directory, tmp_path / "slim")
    slim = continued(run, tmp_path / "slim", 5)
    assert slim_run(slim)
    for each in (slim, continued(run, run.directory, 5)):
        em.run_em(each)
    chosen = [folder / last / "targets/train.target.tokens" for folder in (slim.directory, run.directory)]
    assert chosen[0].read_bytes() == chosen[1].read_bytes()
    assert (slim.directory / "free-1/quality").exists() is False  # φ^1 is the referee itself
    assert any(slim.directory.glob("*/quality/scores.npy"))
