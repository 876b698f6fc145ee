"""Kills, signals, failing disks and damaged files: a run survives them, or says what is wrong and with which file."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from emnat.config import load_config
from emnat.em import run_em
from emnat.errors import UserError
from emnat.workspace import open_run
from tests.system import kill_resume

KILLS = int(os.environ.get("EMNAT_KILLS", "15"))
FAULTS = int(os.environ.get("EMNAT_FAULTS", "25"))
FLIPS = int(os.environ.get("EMNAT_FLIPS", "60"))
CUTS = 20
FAILING = {"open", "flush", "save", "os.rename", "os.mkdir"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    kill_resume.write_workplace(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(workplace: Path) -> tuple[list[str], float, dict[str, str]]:
    """Operations, seconds and results of a run left alone (in `undisturbed`)."""
    return kill_resume.count_operations(workplace)


def test_kills(tmp_path: Path, seed: int) -> None:
    """200 of them are recorded in docs/results."""
    kill_resume.write_workplace(tmp_path)
    survived, _, _ = kill_resume.kill_and_resume(tmp_path, KILLS, seed)
    assert survived == KILLS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_say_how_to_go_on(workplace: Path, undisturbed, number: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    """At three random moments; each time the process is gone within ten seconds."""
    chance, run = random.Random(seed), f"signal-{number}"
    command = [sys.executable, "-m", "emnat", "train", "config.toml", f"run={run}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for _ in range(3):
        (workplace / run / ".lock").unlink(missing_ok=True)  # so that it shows when work begins
        process = subprocess.Popen(command, cwd=workplace, stderr=subprocess.PIPE, env=environment, text=True)
        while not (workplace / run / ".lock").exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(chance.uniform(0.5, 3.0))
        asked = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert "Traceback" not in said
        if (workplace / run / "report.html").exists():
            break  # it had finished before
        assert time.monotonic() - asked < 10
        assert process.returncode == 128 + number
        assert "run the same command again" in said
    assert kill_resume.train(workplace, run, None, None) == 0
    assert kill_resume.results(workplace / run) == undisturbed[2]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_fault_at_any_operation_loses_nothing(workplace: Path, undisturbed, number: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    """Opens, flushes, saves, renames and new folders fail in turn, each the first time it comes: one sentence, code 2,
    and the next try goes on. EMNAT_FAULTS says how many of them, drawn at random; all of them are recorded once."""
    operations, _, wanted = undisturbed
    run = f"fault-{number}"
    noted, log = workplace / f"{run}.failed", workplace / f"{run}.log"
    noted.touch()
    share = FAULTS / len(set(operations))

    def fail(count: int, what: str, path: str) -> None:
        operation = re.sub(r"tfevents.*", "tfevents", f"{what} {path}")  # those are named after the time
        drawn = random.Random(f"{seed} {operation}").random() < share
        if what in FAILING and drawn and operation not in noted.read_text().splitlines():
            with open(noted, "a") as file:
                file.write(operation + "\n")
            raise OSError(number, os.strerror(number), path)

    while (status := kill_resume.train(workplace, run, fail, None)) != 0:
        said = log.read_text()
        assert "Traceback" not in said, said
        assert status == 2, said
        assert run in said.splitlines()[-1]
        log.unlink()
    failed = noted.read_text().splitlines()
    print(f"{len(failed)} operations failed with {os.strerror(number)}: {Counter(line.split()[0] for line in failed)}")
    assert failed
    assert kill_resume.results(workplace / run) == wanted


def test_a_full_disk_stops_a_run_and_space_continues_it(workplace: Path, undisturbed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """On a file system that is really full: too small at first, then larger, step by step."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    try:
        kill_resume.write_workplace(tmp_path)
        (tmp_path / "run").symlink_to(disk / "run")
        (disk / "run").mkdir()
        stopped = 0
        for kilobytes in range(300, 20_000, 150):
            subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", disk], check=True)
            status = kill_resume.train(tmp_path, "run", None, None)
            said = (tmp_path / "run.log").read_text()
            assert "Traceback" not in said, said
            if status == 0:
                break
            assert status == 2
            assert "the disk is full" in said.splitlines()[-1]
            stopped += 1
        assert stopped > 3
        assert kill_resume.results(disk / "run") == undisturbed[2]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_every_damaged_byte_is_found(workplace: Path, undisturbed, seed: int) -> None:  # type: ignore[no-untyped-def]
    """One flipped byte, or a file cut short, anywhere in what a run reads again: named, not used."""
    chance, run = random.Random(seed), workplace / "undisturbed"
    config = load_config(workplace / "config.toml", [f'run="{run}"'])
    ignored = {".lock", "report.html", "results.jsonl"}
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in ignored]
    files = [path for path in files if "tensorboard" not in path.parts and path.stat().st_size]
    for trial in range(FLIPS + CUTS):
        path = chance.choice(files)
        before = path.read_bytes()
        position = chance.randrange(len(before))
        damaged = bytearray(before)
        damaged[position] ^= chance.randrange(1, 256)
        path.write_bytes(bytes(damaged) if trial < FLIPS else before[:position])
        said = "nothing"
        try:
            run_em(open_run(config))
        except UserError as error:
            said = str(error)
        finally:
            path.write_bytes(before)
        assert path.name in said, f"{path}, byte {position}: {before[position]} became {damaged[position]}: {said}"
    run_em(open_run(config))


def test_a_copied_run_works(workplace: Path, undisturbed) -> None:  # type: ignore[no-untyped-def]
    shutil.copytree(workplace / "undisturbed", workplace / "copied")
    assert kill_resume.train(workplace, "copied", None, None) == 0
    assert kill_resume.results(workplace / "copied") == undisturbed[2]
