"""What a user can get wrong: one sentence on standard error, exit code 2, nothing lost."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Emnat


def error_of(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode == 2
    message = done.stderr.decode().strip().splitlines()[-1]
    assert message.startswith("emnat: ")
    return message


def test_missing_file(workplace: Path, emnat: Emnat) -> None:
    (workplace / "corpus/train.en").unlink()
    assert "corpus/train.en: no such file" in error_of(emnat("train", "config.toml", cwd=workplace, check=False))


def test_a_wrong_file_can_be_put_right_in_the_same_run(workplace: Path, emnat: Emnat) -> None:
    """And is found before the training text is read: there is nothing but the config then."""
    wrong = emnat("prepare", "config.toml", 'data.test=["corpus/nope.tsv"]', cwd=workplace, check=False)
    assert "corpus/nope.tsv: no such file" in error_of(wrong)
    assert not list((workplace / "run").glob("**/train.source.txt"))
    emnat("prepare", "config.toml", cwd=workplace)
    later = emnat("prepare", "config.toml", "text.vocabulary=650", cwd=workplace, check=False)
    assert "started with other settings" in error_of(later)


def test_one_run_has_all_its_iterations_shown(workplace: Path, emnat: Emnat) -> None:
    assert "several runs" in error_of(emnat("report", "run", "--iteration", "1", cwd=workplace, check=False))


def test_unequal_line_counts(workplace: Path, emnat: Emnat) -> None:
    with (workplace / "corpus/train.en").open("a") as file:
        file.write("one more\n")
    message = error_of(emnat("prepare", "config.toml", cwd=workplace, check=False))
    assert "train.de has 300 lines" in message
    assert "train.en has 301" in message


def test_invalid_utf8_in_a_corpus_and_in_a_stream(workplace: Path, finished: Path, emnat: Emnat) -> None:
    lines = (workplace / "corpus/train.de").read_bytes().split(b"\n")
    lines[16] = b"M\xfcnchen"
    (workplace / "corpus/train.de").write_bytes(b"\n".join(lines))
    message = error_of(emnat("prepare", "config.toml", cwd=workplace, check=False))
    assert "corpus/train.de, line 17: not valid UTF-8" in message
    done = emnat("translate", "run", cwd=finished, stdin=b"Ja.\n\xff\n", check=False)
    assert "standard input, line 2: not valid UTF-8" in error_of(done)


def test_empty_corpus(workplace: Path, emnat: Emnat) -> None:
    (workplace / "corpus/train.de").write_text("\n\n")
    (workplace / "corpus/train.en").write_text("\n\n")
    message = error_of(emnat("train", "config.toml", cwd=workplace, check=False))
    assert "no pair is left after cleaning" in message
    assert "empty: 2" in message


def test_nothing_is_held_out(workplace: Path, emnat: Emnat) -> None:
    config, valid = workplace / "config.toml", 'valid = ["corpus/valid.de", "corpus/valid.en"]'
    config.write_text(config.read_text().replace(valid, "hold_out = 301"))
    message = error_of(emnat("train", "config.toml", cwd=workplace, check=False))
    assert "data.hold_out = 301: of 300 clean training pairs that takes none" in message


def test_a_source_longer_than_the_positions(finished: Path, emnat: Emnat) -> None:
    stdin = "Der Arzt hat gelacht.\n" + "sehr " * 1000 + "alt\n" + "Die Frau hat gelacht.\n"
    done = emnat("translate", "run", cwd=finished, stdin=stdin.encode())
    alone = emnat("translate", "run", cwd=finished, stdin=b"Die Frau hat gelacht.\n").stdout
    assert done.stdout.count(b"\n") == 3
    assert done.stdout.endswith(alone)
    assert b"line 2" in done.stderr


def test_unknown_key_names_the_nearest(workplace: Path, emnat: Emnat) -> None:
    message = error_of(emnat("train", "config.toml", "em.itterations=3", cwd=workplace, check=False))
    assert "'em.itterations'" in message
    assert "'em.iterations'" in message


def test_a_run_of_another_config_says_what_differs(finished: Path, emnat: Emnat) -> None:
    message = error_of(emnat("train", "config.toml", "student.hidden=96", cwd=finished, check=False))
    assert "student.hidden: 48 → 96" in message


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.model", "referee.safetensors"])
@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_truncated_model_directory(finished: Path, emnat: Emnat, tmp_path: Path, name: str, keep: float) -> None:
    shutil.copytree(finished / "run/model", tmp_path / "model")
    path = tmp_path / "model" / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    message = error_of(emnat("translate", "model", cwd=tmp_path, stdin=b"Ja.\n", check=False))
    assert name in message


def test_no_model_and_no_run(tmp_path: Path, emnat: Emnat) -> None:
    assert "nowhere: not a directory" in error_of(emnat("translate", "nowhere", cwd=tmp_path, check=False))
    assert "not a model directory" in error_of(emnat("translate", ".", cwd=tmp_path, check=False))
    assert "not a run directory" in error_of(emnat("report", "nowhere", cwd=tmp_path, check=False))


def test_options_of_the_other_kind_of_model(finished: Path, emnat: Emnat) -> None:
    for model, options, reason in (
        ("run", ("--beam", "5"), "a student: it has no beam"),
        ("run/free-1/teacher", ("--decoder", "odd"), "are for students"),
        ("run/free-1/teacher", ("--length-candidates", "9"), "are for students"),
    ):
        done = emnat("translate", model, *options, cwd=finished, stdin=b"Ja.\n", check=False)
        assert reason in error_of(done)
    assert "--page is for one run" in error_of(
        emnat("report", "run", "run", "--page", "x.html", cwd=finished, check=False)
    )


def test_a_device_that_is_not_there_is_missed_before_the_text_is_read(workplace: Path, emnat: Emnat) -> None:
    assert "device = 'foo'" in error_of(emnat("train", "config.toml", "device=foo", cwd=workplace, check=False))
    assert not (workplace / "run/data").exists()


def test_a_run_directory_in_use(workplace: Path, emnat: Emnat) -> None:
    emnat("prepare", "config.toml", cwd=workplace)
    with (workplace / "run/.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        message = error_of(emnat("train", "config.toml", cwd=workplace, check=False))
    assert "another process" in message


def test_lost_data_is_not_made_again_from_another_corpus(workplace: Path, emnat: Emnat) -> None:
    emnat("prepare", "config.toml", cwd=workplace)
    shutil.rmtree(workplace / "run/data")
    emnat("prepare", "config.toml", cwd=workplace)
    shutil.rmtree(workplace / "run/data")
    shutil.copyfile(workplace / "corpus/test.de", workplace / "corpus/train.de")
    shutil.copyfile(workplace / "corpus/test.en", workplace / "corpus/train.en")
    assert "other files" in error_of(emnat("prepare", "config.toml", "text.vocabulary=700", cwd=workplace, check=False))


def test_a_generated_corpus_is_that_of_the_seed(tmp_path: Path, emnat: Emnat) -> None:
    """Until its data are made, a run may be begun again with another one."""
    sizes = ("--pairs", "20", "--length", "5", "--test", "5", "--corpus-only")
    for run, seeds in (("other", (2,)), ("run", (1, 2))):
        for seed in seeds:
            emnat("synthetic", "I", "--run", run, "--seed", str(seed), *sizes, cwd=tmp_path)
    [one], [other] = (list((tmp_path / run).glob("corpus-*/train.src")) for run in ("run", "other"))
    assert one.read_bytes() == other.read_bytes()


def test_synthetic_targets_that_no_model_could_write(tmp_path: Path, emnat: Emnat) -> None:
    long = emnat("synthetic", "II", "--pairs", "20", "--length", "50", "--corpus-only", cwd=tmp_path, check=False)
    assert "a target can have 254 tokens: add text.max_tokens=254" in error_of(long)
    assert not list(tmp_path.iterdir())
    emnat("synthetic", "I", "--pairs", "20", "--length", "32", "--corpus-only", cwd=tmp_path)  # at most 160


def test_a_benchmark_of_nothing(tmp_path: Path, emnat: Emnat) -> None:
    small = ("--size", "toy", "--vocabulary", "100", "--only", "AR greedy", "--only", "MarianNMT")
    message = error_of(emnat("bench", *small, cwd=tmp_path, check=False))
    assert "--only 'MarianNMT': in no description; there are: AR greedy, emnat, float32;" in message


def test_streams_that_are_closed_and_terminals_without_letters(finished: Path) -> None:
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for end, name in (("<&-", "input"), (">&-", "output")):
        command = ["bash", "-c", f"{sys.executable} -m emnat translate run {end}"]
        done = subprocess.run(command, cwd=finished, capture_output=True, check=False)
        assert f"standard {name} is closed" in error_of(done)
    command = [sys.executable, "-m", "emnat", "report", "run", "--page", "../page.html"]
    done = subprocess.run(command, cwd=finished, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_bad_lines_of_score(finished: Path, emnat: Emnat) -> None:
    assert "line 1: 1 tab-separated fields" in error_of(
        emnat("score", "run", cwd=finished, stdin=b"no tab\n", check=False)
    )


def test_a_reader_that_goes_away(finished: Path) -> None:
    """`emnat translate | head -1` ends quietly."""
    translate = f"{sys.executable} -m emnat translate run --block 50"
    command = f"yes 'Der Arzt hat gelacht.' | head -4000 | {translate} | head -1"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", command], cwd=finished, capture_output=True, env=environment, check=False)
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


@pytest.mark.parametrize(("command", "line"), [("translate", b"Ja.\n"), ("score", b"Ja.\tYes.\n")])
def test_a_line_that_is_typed_is_answered_at_once(finished: Path, command: str, line: bytes) -> None:
    keyboard, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "emnat", command, "run"], cwd=finished, stdin=terminal, stdout=subprocess.PIPE
    )
    os.close(terminal)
    assert process.stdout is not None
    for _ in range(2):  # the input goes on
        os.write(keyboard, line)
        answered, _, _ = select.select([process.stdout], [], [], 60)
        assert answered
        assert process.stdout.readline().endswith(b"\n")
    os.write(keyboard, b"\x04")  # the end, as a keyboard says it
    assert process.wait(timeout=60) == 0
    os.close(keyboard)


def test_interrupting_says_how_to_go_on(workplace: Path) -> None:
    command = [sys.executable, "-m", "emnat", "train", "config.toml", "teacher.training.steps=100000"]
    # Where tests run in the background, interrupts are ignored by inheritance; a user's terminal does not do that.
    process = subprocess.Popen(
        command,
        cwd=workplace,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stderr is not None
    validations = (line for line in process.stderr if b"validation" in line)
    next(validations)
    next(validations)  # so the state of the first is on disk
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"run the same command again to continue" in rest
    assert (workplace / "run/free-1/teacher.partial/scratch/state.safetensors").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "foo", "meta", "mps"])
def test_no_such_device(finished: Path, emnat: Emnat, device: str) -> None:
    done = emnat("translate", "run", "--device", device, cwd=finished, check=False)
    assert f"device = '{device}'" in error_of(done)


def test_places_that_cannot_be_written(workplace: Path, emnat: Emnat) -> None:
    done = emnat("train", "config.toml", "run=config.toml", cwd=workplace, check=False)
    assert "a file, not a directory" in error_of(done)
    done = emnat("train", "config.toml", "run=config.toml/x", cwd=workplace, check=False)
    assert "cannot be read or written" in error_of(done)


def test_measures_that_are_missing(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    """Reports say so; slimming leaves what may turn out to be the best; training makes them anew."""
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    shutil.rmtree(run / "free-1/measures")
    (run / "free-3").mkdir()  # two later iterations, so that the first could go
    assert "free-1/measures: missing" in error_of(emnat("report", str(run), cwd=tmp_path, check=False))
    emnat("slim", str(run), cwd=tmp_path)
    assert (run / "free-1/student/model.safetensors").exists()
    (run / "free-3").rmdir()
    emnat("train", "config.toml", f"run={run}", cwd=finished)
    assert (run / "free-1/measures").exists()


def test_a_damaged_digest_of_the_data_is_named(workplace: Path, emnat: Emnat) -> None:
    emnat("prepare", "config.toml", cwd=workplace)
    (workplace / "run/data.sha256").write_bytes(b"\xff")
    assert "data.sha256: damaged" in error_of(emnat("prepare", "config.toml", cwd=workplace, check=False))
    (workplace / "run/data.sha256").write_text("0" * 64)  # looks whole
    assert "data.sha256 is damaged: delete it" in error_of(emnat("prepare", "config.toml", cwd=workplace, check=False))
    (workplace / "run/data.sha256").unlink()
    emnat("prepare", "config.toml", cwd=workplace)
