"""Runs that are slimmed, or continued with other settings, end as those that were not. Real steps on a tiny corpus;
only what validation says is made up."""

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


def continued(run: Run, directory: Path, **settings: int) -> Run:
    em_settings = run.config.em.model_copy(update=settings)
    return replace(run, directory=directory, config=run.config.model_copy(update={"em": em_settings}))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What validation says of each iteration; to be filled in."""
    curve: dict[str, float] = {}

    def measure(run: Run, corpus: Any, stage: str, teacher: Any, student: steps.Trained, *others: Any) -> float:
        run.build(f"{stage}/measures", [student.artifact], lambda folder: {"validation": curve[stage]})
        return curve[stage]

    monkeypatch.setattr(steps, "measure", measure)
    monkeypatch.setattr(steps, "publish", lambda *models: None)
    return curve


@pytest.mark.parametrize(
    ("settings", "curve", "last"),
    [({"rule": "posterior", "bounds": False}, RISING, "free-5"), ({"rule": "nar"}, DROPPING, "bounded-5")],
)
def test_slim_run_goes_on(
    settings: dict[str, Any], curve: dict[str, float], last: str, tmp_path: Path, scripted: dict[str, float]
) -> None:
    """Also where the referee is asked: by the rule `posterior`, and by bounds, those of an iteration long past."""
    scripted |= curve
    run = begin(tmp_path, settings)
    em.run_em(continued(run, run.directory, iterations=4))
    shutil.copytree(run.directory, tmp_path / "slim")
    slim = continued(run, tmp_path / "slim", iterations=5)
    assert slim_run(slim)
    for each in (slim, continued(run, run.directory, iterations=5)):
        em.run_em(each)
    assert_same(slim, run, f"{last}/targets/train.target.tokens")
    assert (slim.directory / "free-1/quality").exists() is False  # φ^1 is the referee itself
    assert any(slim.directory.glob("*/quality/scores.npy"))


def test_slimming_knows_which_iterations_em_goes_by(tmp_path: Path, scripted: dict[str, float]) -> None:
    """Four free iterations, then a bounded branch that begins after two of them: the third and fourth are not in it."""
    scripted |= RISING | {f"bounded-{t}": 2.0 + t / 10 for t in range(3, 7)}
    run = begin(tmp_path, {"iterations": 4})
    em.run_em(run)
    run = continued(run, run.directory, iterations=5, free_iterations=2)
    em.run_em(run)
    (run.directory / "free-1/candidates.partial/scratch").mkdir(parents=True)  # of a process that was killed
    shutil.copytree(run.directory, tmp_path / "slim")
    freed = slim_run(replace(run, directory=tmp_path / "slim"))
    assert {name.split("/")[0] for name in freed} == {"free-1", "bounded-3"}
    ends = [continued(run, folder, iterations=6) for folder in (run.directory, tmp_path / "slim")]
    assert {em.run_em(each).stage for each in ends} == {"bounded-6"}
    assert_same(*ends, "bounded-6/student/model.safetensors")


@pytest.mark.parametrize("warm_start", [False, True])
def test_another_way_through_the_iterations_is_gone_to_its_end(
    warm_start: bool, tmp_path: Path, scripted: dict[str, float]
) -> None:
    """Iteration 4 with bounds comes after another third one than before: nothing of the old one may be left."""
    scripted |= RISING | {"bounded-3": 4.0, "bounded-4": 5.0}
    run = begin(tmp_path, {"iterations": 4, "free_iterations": 2, "warm_start": warm_start})
    em.run_em(run)
    changed = continued(run, run.directory, free_iterations=3)
    fresh = continued(run, tmp_path / "fresh", free_iterations=3)
    for each in (changed, fresh):
        assert em.run_em(each).stage == "bounded-4"
    for made in ("teacher/model.safetensors", "distilled/train.target.tokens", "student/model.safetensors"):
        assert_same(changed, fresh, f"bounded-4/{made}")


def test_slimming_what_is_being_made_anew(tmp_path: Path, scripted: dict[str, float]) -> None:
    """The same change, interrupted in the fifth iteration: the sixth and seventh are not what EM goes by any more."""
    scripted |= RISING | {f"bounded-{t}": 4.0 + t for t in range(3, 8)}
    run = begin(tmp_path, {"iterations": 7, "free_iterations": 2})
    em.run_em(run)
    changed, fresh = (continued(run, folder, free_iterations=3) for folder in (run.directory, tmp_path / "fresh"))
    train_student = steps.train_student

    def stop(run: Run, corpus: Any, stage: str, *others: Any, **named: Any) -> steps.Trained:
        if stage == "bounded-5":
            raise KeyboardInterrupt
        return train_student(run, corpus, stage, *others, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(steps, "train_student", stop)
        with pytest.raises(KeyboardInterrupt):
            em.run_em(changed)
    assert {name.split("/")[0] for name in slim_run(changed)} == {"free-1", "free-2"}
    for each in (changed, fresh):
        assert em.run_em(each).stage == "bounded-7"
    assert_same(changed, fresh, "bounded-7/student/model.safetensors")


def test_a_teacher_that_comes_out_the_same_has_the_same_descendants(tmp_path: Path, scripted: dict[str, float]) -> None:
    """With fewer tokens a batch, too, as the message about too little memory recommends."""
    scripted |= RISING
    run = begin(tmp_path, {"iterations": 2})
    em.run_em(run)
    student = run.artifact("free-1/student/manifest.json")
    written = student.stat().st_mtime_ns
    shutil.rmtree(run.artifact("free-1/teacher"))
    decode = run.config.decode.model_copy(update={"tokens": 5_000})
    em.run_em(replace(run, config=run.config.model_copy(update={"decode": decode})))
    assert run.artifact("free-1/teacher").exists()
    assert student.stat().st_mtime_ns == written


def assert_same(one: Run, other: Run, file: str) -> None:
    assert (one.directory / file).read_bytes() == (other.directory / file).read_bytes(), file
