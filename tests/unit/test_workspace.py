from __future__ import annotations

import errno
import json
import shutil
import time
from functools import partial
from pathlib import Path

import pytest

from emnat.artifacts import Manifest, _write_manifest, empty_artifact, read_facts, read_manifest, scratch
from emnat.config import build_config
from emnat.errors import UserError
from emnat.workspace import Run, begin, find_run, locked, open_run


def config_for(folder: Path, **changes: object):  # type: ignore[no-untyped-def]
    return build_config({"run": str(folder), "data": {"train": ["a"], "valid": ["b"]}} | changes, "test")


def run_with(folder: Path, *artifacts: str) -> Run:
    """Each holds its own name."""
    run = open_run(config_for(folder))
    for name in artifacts:
        run.build(name, [], partial(write, text=name))
    return run


def write(folder: Path, text: str) -> None:
    (folder / "text").write_text(text)


def test_artifacts_are_built_once_and_whole(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "parent")
    calls = []

    def make(folder: Path) -> dict[str, int]:
        calls.append(folder.name)
        (folder / "file").write_text("content")
        return {"answer": 42}

    first = run.build("a/b", ["parent"], make)
    assert run.build("a/b", ["parent"], make) == first
    assert calls == ["b.partial"]
    manifest = read_manifest(first)
    assert manifest.parents == ["parent"]
    assert manifest.files["file"].bytes == 7
    assert read_facts(first) == {"answer": 42}
    assert not first.with_name("b.partial").exists()


def test_another_parent_means_another_artifact(tmp_path: Path) -> None:
    """A run that is continued with more iterations may choose another student: its model is made anew."""
    run = run_with(tmp_path / "run", "t1", "t2")
    run.build("model", ["t1"], lambda folder: {"student": "t1"})
    assert read_facts(run.build("model", ["t2"], lambda folder: {"student": "t2"})) == {"student": "t2"}


def test_another_content_of_a_parent_means_another_artifact(tmp_path: Path) -> None:
    """What was deleted and made anew, otherwise (on a GPU, say), takes along all that was made from it."""
    run = run_with(tmp_path / "run", "teacher")
    made = []

    def build_descendants() -> None:
        for name, parent in (("student", "teacher"), ("model", "student")):
            run.build(name, [parent], lambda folder, of=parent: made.append(of) or copy_text(run.artifact(of), folder))

    def copy_text(parent: Path, folder: Path) -> None:
        write(folder, (parent / "text").read_text())

    build_descendants()
    for text, expected in (("teacher", []), ("another", ["teacher", "student"])):
        made.clear()
        shutil.rmtree(run.artifact("teacher"))
        run.build("teacher", [], partial(write, text=text))
        build_descendants()
        assert made == expected
    assert (run.artifact("model") / "text").read_text() == "another"


def test_manifests_from_before_digests_were_noted(tmp_path: Path) -> None:
    """Names alone are compared then; some stood there twice, and some not at all."""
    run = run_with(tmp_path / "run", "teacher", "student", "bounds")
    made = run.build("a", ["teacher", "student"], lambda folder: None)
    old = read_manifest(made).model_dump(exclude={"parent_digests"}, exclude_unset=True)
    _write_manifest(made, Manifest.model_validate(old | {"parents": ["teacher", "student", "teacher"]}))
    assert "parent_digests" not in (made / "manifest.json").read_text()
    for parents in (["teacher", "student", "teacher"], ["teacher", "student", "bounds"]):
        run.build("a", parents, lambda folder: pytest.fail("made anew"))
    assert read_facts(run.build("a", ["teacher", "bounds"], lambda folder: {"anew": True})) == {"anew": True}


def test_an_artifact_that_an_older_version_began_is_continued(tmp_path: Path) -> None:
    """It noted its parents' names alone."""
    run = run_with(tmp_path / "run", "parent")
    state = scratch(run.artifact("a").with_name("a.partial"))
    (state / "parents.json").write_text('["parent"]')
    (state / "state").write_text("x")
    folder = run.build("a", ["parent"], lambda folder: {"kept": (scratch(folder) / "state").exists()})
    assert read_facts(folder) == {"kept": True}


def test_an_emptied_artifact_still_says_that_it_was_made(tmp_path: Path) -> None:
    run = open_run(config_for(tmp_path / "run"))
    made = run.build("a", [], lambda folder: {"bytes": (folder / "big").write_bytes(bytes(1000))})
    assert empty_artifact(made) == 1000
    assert empty_artifact(made) == 0
    assert [path.name for path in made.iterdir()] == ["manifest.json"]
    assert read_facts(run.build("a", [], lambda folder: {"bytes": 0})) == {"bytes": 1000}


def test_seconds_are_those_of_all_processes(tmp_path: Path) -> None:
    run = open_run(config_for(tmp_path / "run"))

    def work(folder: Path) -> None:
        time.sleep(0.2)
        if not (scratch(folder) / "begun").exists():
            (scratch(folder) / "begun").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.build("a", [], work)
    assert 0.4 <= read_manifest(run.build("a", [], work)).seconds < 2


def test_scratch_outlives_interruption_but_not_success(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "a", "b")

    def die(folder: Path) -> None:
        (scratch(folder) / "state").write_text("x")
        raise RuntimeError

    for parents, kept in ((["a"], True), (["b"], False)):
        with pytest.raises(RuntimeError):
            run.build("y", ["a"], die)
        folder = run.build("y", parents, lambda folder: {"kept": (scratch(folder) / "state").exists()})
        assert read_facts(folder) == {"kept": kept}
        assert [path.name for path in folder.iterdir()] == ["manifest.json"]
        folder.rename(tmp_path / f"done {kept}")


def test_an_interrupted_artifact_is_continued_from_its_scratch_alone(tmp_path: Path) -> None:
    run = open_run(config_for(tmp_path / "run"))

    def die(folder: Path) -> None:
        (scratch(folder) / "state").write_text("x")
        (folder / ".tmpl4G9Dk").write_text("x")  # as safetensors names what it has not finished
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run.build("a", [], die)
    assert not run.artifact("a").exists()
    finished = run.build("a", [], lambda folder: {"found": (scratch(folder) / "state").exists()})
    assert read_facts(finished) == {"found": True}
    assert [path.name for path in finished.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_text("conten"), "6 bytes instead of 7"),
        (lambda path: path.write_text("cantent"), "checksum is wrong"),
    ],
)
def test_damage_is_named(tmp_path: Path, harm, message: str) -> None:  # type: ignore[no-untyped-def]
    run = open_run(config_for(tmp_path / "run"))
    folder = run.build("a", [], lambda folder: (folder / "file").write_text("content") and None)
    harm(folder / "file")
    with pytest.raises(UserError, match=message):
        run.build("a", [], lambda folder: None)


def test_another_config_says_what_differs(tmp_path: Path) -> None:
    open_run(config_for(tmp_path / "run", seed=3))
    run = open_run(config_for(tmp_path / "run"))  # as long as nothing has been made, anything may change
    run.build("data", [], lambda folder: None)
    with pytest.raises(UserError, match=r"other settings \(seed: 1 → 7\)"):
        open_run(config_for(tmp_path / "run", seed=7))
    rule = {"rule": "kl"}
    run = open_run(config_for(tmp_path / "run", em=rule))  # nothing has been trained yet that depends on it
    run.build("free-1/teacher", ["data"], lambda folder: None)
    with pytest.raises(UserError, match=r"other settings \(em.rule: 'kl' → 'nar'\)"):
        open_run(config_for(tmp_path / "run"))
    assert open_run(config_for(tmp_path / "run", em=rule | {"iterations": 9})).config.em.iterations == 9


def test_foreign_folders_and_versions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("")
    with pytest.raises(UserError, match="not empty and not a run directory"):
        open_run(config_for(tmp_path))
    with pytest.raises(UserError, match="not a run directory"):
        find_run(tmp_path)
    run = open_run(config_for(tmp_path / "run"))
    folder = run.build("a", [], lambda folder: None)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 0}))
    with pytest.raises(UserError, match="format 0"):
        run.build("a", [], lambda folder: None)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    run = open_run(config_for(tmp_path / "run"))
    with locked(run.directory), pytest.raises(UserError, match="another process"), locked(run.directory):
        pass
    with locked(run.directory):
        pass


def test_a_full_disk_is_explained_and_loses_nothing(tmp_path: Path) -> None:
    run = open_run(config_for(tmp_path / "run"))

    def full(folder: Path) -> None:
        (scratch(folder) / "part").write_text("kept")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="the disk is full"):
        run.build("a", [], full)
    folder = run.build("a", [], lambda folder: {"kept": (scratch(folder) / "part").read_text()})
    assert read_facts(folder) == {"kept": "kept"}


def test_what_is_replaced_stays_until_its_successor_is_whole(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "t1", "t2")
    run.build("model", ["t1"], lambda folder: {"student": "t1"})

    def fail(folder: Path) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run.build("model", ["t2"], fail)
    assert read_facts(run.artifact("model")) == {"student": "t1"}


@pytest.mark.parametrize("final_too", [False, True])
def test_a_kill_while_one_is_replaced(tmp_path: Path, final_too: bool) -> None:
    """Between the two renames, or while the replaced one is deleted file by file."""
    run = run_with(tmp_path / "run", "t1", "t2")
    first = run.build("model", ["t1"], lambda folder: (folder / "x").write_text("x") and {"student": "t1"})
    replaced = first.with_name("model.replaced")
    first.rename(replaced)
    (replaced / "manifest.json").unlink()
    if final_too:
        run.build("model", ["t2"], lambda folder: {"student": "t2"})
        replaced.mkdir()
    assert read_facts(run.build("model", ["t2"], lambda folder: {"student": "t2"})) == {"student": "t2"}
    assert sorted(path.name for path in run.directory.iterdir()) == ["config.toml", "model", "t1", "t2"]


def test_slimming_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    run = open_run(config_for(tmp_path / "run"))
    made = run.build("a", [], lambda folder: {"bytes": (folder / "big").write_bytes(bytes(1000))})
    _write_manifest(made, read_manifest(made).model_copy(update={"emptied": True}))  # and no further
    assert empty_artifact(made) == 1000
    assert not (made / "big").exists()


def test_a_process_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    with begin(config_for(tmp_path / "run")) as run:
        before = (run.directory / "config.toml").read_bytes()
        with pytest.raises(UserError, match="another process"), begin(config_for(run.directory, em={"iterations": 9})):
            pass
        assert (run.directory / "config.toml").read_bytes() == before


def test_trouble_with_a_disk_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, say: nobody should be told to delete something."""
    run = open_run(config_for(tmp_path / "run"))
    run.build("a", [], lambda folder: None)

    def no_more(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(Path, "read_bytes", no_more)
    with pytest.raises(OSError, match="Too many open files"):
        run.build("a", [], lambda folder: None)


def test_artifacts_that_are_links(tmp_path: Path) -> None:
    """To another disk, say: they can be replaced again and again, and one that is not mounted is missed at once."""
    run = run_with(tmp_path / "run", "t0", "t1", "t2")
    model = run.build("model", ["t0"], lambda folder: {})
    model.rename(tmp_path / "elsewhere")
    model.symlink_to(tmp_path / "elsewhere")
    for parent in ("t1", "t2"):
        assert read_facts(run.build("model", [parent], lambda folder, of=parent: {"of": of})) == {"of": parent}
    assert sorted(path.name for path in run.directory.iterdir()) == ["config.toml", "model", "t0", "t1", "t2"]
    other = run.artifact("other")
    other.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is its disk mounted"):
        run.build("other", [], lambda folder: {})
