"""Preparing gives the same bytes with one process, one worker and two."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emnat import world
from emnat.config import Text, build_config
from emnat.data import grammar, prepare
from emnat.errors import UserError


def test_any_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar.write_corpus(tmp_path / "corpus", train=150, valid=10, test=10, seed=1)
    files = grammar.corpus_files(tmp_path / "corpus")
    values = {"run": "x", "data": files, "text": {"moses": True, "vocabulary": 400}}
    found = []
    for block, workers in ((1_000, 1), (40, 1), (40, 2)):
        monkeypatch.setattr(prepare, "_BLOCK", block)
        monkeypatch.setattr(world, "cores", lambda workers=workers: workers)
        folder = tmp_path / f"{block}-{workers}"
        folder.mkdir()
        prepare.prepare_corpus(build_config(values, "test"), folder)
        found.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()})
    assert found[0] == found[1] == found[2]
    assert "train.source.tokens" in found[0]


def test_a_worker_that_is_killed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system for want of memory, say. (multiprocessing.Pool would wait for it without end.)"""
    monkeypatch.setattr(prepare, "_BLOCK", 40)
    pairs = prepare._process_pairs(itertools.repeat(("Guten Tag.", "Good day.")), Text(moses=True))
    next(pairs)
    for worker in multiprocessing.active_children():
        worker.kill()
    with pytest.raises(UserError, match="was killed"):
        list(itertools.islice(pairs, 1_000))


PARENT = """
import itertools, multiprocessing, os, signal
from emnat.config import Text
from emnat.data import prepare
if __name__ == "__main__":
    prepare._BLOCK = 40
    next(prepare._process_pairs(itertools.repeat(("Guten Tag.", "Good day.")), Text(moses=True)))
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    # The call returns when the last process that can write to its output is gone.
    done = subprocess.run([sys.executable, tmp_path / "parent.py"], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split()


GROUP = """
import itertools, os, signal
from emnat import interrupt
from emnat.config import Text
from emnat.data import prepare
if __name__ == "__main__":
    prepare._BLOCK = 40
    with interrupt.graceful():
        pairs = prepare._process_pairs(itertools.repeat(("Guten Tag.", "Good day.")), Text(moses=True))
        next(pairs)
        os.killpg(0, signal.SIGTERM)
        try:
            for _ in itertools.islice(pairs, 100_000):
                interrupt.stop_if_asked()
        except interrupt.Interrupted:
            print("interrupted")
"""


def test_a_signal_to_all_is_no_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "group.py").write_text(GROUP)
    command = [sys.executable, tmp_path / "group.py"]
    done = subprocess.run(command, capture_output=True, timeout=60, start_new_session=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"interrupted\n"), done.stderr
