from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from emnat.config import SIZES, Config, Data, Training, build_config, differences, load_config, resolved_toml
from emnat.errors import UserError
from emnat.training.optimiser import learning_rate

MINIMAL = {"run": "r", "data": {"train": ["a", "b"], "valid": ["c", "d"]}}


def write(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text)
    return path


def test_resolved_config_reads_back_the_same() -> None:
    config = build_config(
        MINIMAL | {"student": {"size": "base", "hidden": 64}, "larger_student": {"size": "large"}}, "x"
    )
    assert build_config(tomllib.loads(resolved_toml(config)), "x") == config
    assert config.student.hidden == 64
    assert config.student.filter == SIZES["base"]["filter"]


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, 'run = "r"\n[data]\ntrain = ["a.tsv"]\nvalid = ["b.tsv"]\n')
    overrides = ["em.iterations=4", "em.rule=kl", "text.lowercase=true", 'data.test=["t.tsv"]', "run=other"]
    config = load_config(path, overrides)
    assert (config.em.iterations, config.em.rule, config.text.lowercase) == (4, "kl", True)
    assert config.data.test == ["t.tsv"]
    assert config.run == "other"
    taken_out = load_config(path, ["data.valid=", "data.hold_out=20", "larger_student.hidden=64", "larger_student="])
    assert (taken_out.data.valid, taken_out.larger_student) == (None, None)
    assert load_config(path, ["larger_student.training.steps="]).larger_student is None  # nor does it make a section
    with pytest.raises(UserError, match=r"unknown setting; did you mean 'larger_student'"):
        load_config(path, ["larger_studnet="])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"em": {"iteration": 3}}, r"unknown setting 'em\.iteration'; did you mean 'em\.iterations'\?"),
        ({"sede": 3}, "unknown setting 'sede'; did you mean 'seed'"),
        ({"teacher": {"traning": {}}}, r"did you mean 'teacher\.training'"),
        ({"student": {"training": {"step": 1}}}, r"did you mean 'student\.training\.steps'"),
        ({"em": {"rule": "best"}}, r"em\.rule: .*'nar'"),
        ({"em": {"rule": "kl", "length_penalty": 1.0}}, "em: length_penalty has no use with the rule 'kl'"),
        ({"seed": "x"}, "seed: .*integer"),
        ({"student": {"hidden": 30, "heads": 4}}, "hidden = 30 is not divisible by heads = 4"),
        ({"data": {"train": ["a"]}}, "give a validation set"),
        ({"data": {"train": ["a"], "valid": ["b"], "hold_out": 5}}, "give a validation set"),
        ({"data": {"valid": ["a"]}}, r"the setting 'data\.train' is missing"),
        ({"teacher": {"size": ["small"]}}, r"teacher\.size"),
        ({"em": 3}, "em: .*EM"),
        ({"teacher": {"dropout": 1.5}}, r"teacher\.dropout"),
        ({"text": {"source_language": "German"}}, r"text\.source_language"),
    ],
)
def test_bad_settings_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_config(MINIMAL | values, "x.toml")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("teacher.steps", "teacher.training.steps"),
        ("teacher.layers", "teacher.encoder_layers"),
        ("student.learning_rate", "student.training.learning_rate"),
        ("em.itterations", "em.iterations"),
    ],
)
def test_unknown_settings_name_the_one_that_is_meant(tmp_path: Path, key: str, meant: str) -> None:
    text = 'run = "r"\n[data]\ntrain = ["a", "b"]\nvalid = ["a", "b"]'
    with pytest.raises(UserError, match=f"did you mean '{meant}'"):
        load_config(write(tmp_path, text), [f"{key}=3"])


def test_files_that_are_no_pair_are_explained_without_pydantic(tmp_path: Path) -> None:
    for value in ('"train.de"', "[1, 2]", '[["a", 3]]'):
        with pytest.raises(UserError, match=r"data\.train: give \[source, target\]"):
            load_config(write(tmp_path, f'run = "r"\n[data]\ntrain = {value}\nvalid = ["a", "b"]'))


def test_files_and_overrides_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.toml: cannot read"):
        load_config(tmp_path / "nowhere.toml")
    for name in ("r\0", "r\udcff"):
        with pytest.raises(UserError, match="no text"):
            load_config(write(tmp_path, 'run = "r"'), [f"run={name}"])
    for text in ("run = ", "run = " + "9" * 5_000, "run = " + "[" * 5_000):
        with pytest.raises(UserError, match="not valid TOML"):
            load_config(write(tmp_path, text))
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not valid TOML"):
        load_config(tmp_path / "x.toml")
    with pytest.raises(UserError, match="is not an override"):
        load_config(write(tmp_path, 'run = "r"'), ["em.iterations"])
    with pytest.raises(UserError, match="run is a value, not a section"):
        load_config(write(tmp_path, 'run = "r"'), ["run.x=1"])


def test_differences_name_what_makes_another_experiment() -> None:
    old = Config(run="a", data=Data(train=["x"], valid=["y"]))
    assert differences(old, old) == []
    more = build_config(old.model_dump() | {"run": "b", "em": {"iterations": 9}, "device": "cpu"}, "x")
    assert differences(old, more) == []
    later = build_config(old.model_dump() | {"larger_student": {"size": "base"}, "decode": {"tokens": 5}}, "x")
    assert differences(old, later) == []
    assert differences(later, build_config(old.model_dump() | {"larger_student": {"size": "large"}}, "x"))
    assert differences(later, old) == ["larger_student: 'base' → None"]
    other = build_config(old.model_dump() | {"seed": 2, "text": {"vocabulary": 5}}, "x")
    assert differences(old, other) == ["seed: 1 → 2", "text.vocabulary: 10000 → 5"]


def test_a_warm_start_has_its_own_steps() -> None:
    training = Training(steps=1_000, warmup=200, decay="linear", validate_every=100)
    assert training.from_predecessor() == training
    short = training.model_copy(update={"warm_steps": 100}).from_predecessor()
    assert (short.steps, short.validate_every) == (100, 10)  # as many checkpoints, to average
    whole = [learning_rate(step, training) for step in range(10, 1_001, 10)]
    assert [learning_rate(step, short) for step in range(1, 101)] == pytest.approx(whole, abs=0.02 * max(whole))
