"""Shared by all tests: a seed that is printed when a test fails, tiny models, and the real commands."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from emnat.config import Model
from emnat.models import NAT, Teacher

torch.set_num_threads(1)  # tiny models are fastest so, and a busy machine does not slow them down
Done = subprocess.CompletedProcess[bytes]
Emnat = Callable[..., Done]
TINY = Model(encoder_layers=1, decoder_layers=2, hidden=16, filter=32, heads=2, dropout=0.0)


@pytest.fixture
def seed() -> int:
    """Another one in every run, so that no threshold is fitted to one curve; EMNAT_TEST_SEED repeats a run."""
    chosen = int(os.environ.get("EMNAT_TEST_SEED", random.SystemRandom().randrange(10_000)))
    print(f"seed {chosen}: repeat with EMNAT_TEST_SEED={chosen}")
    return chosen


@pytest.fixture
def tiny_teacher(seed: int) -> Teacher:
    torch.manual_seed(seed)
    return Teacher(TINY, vocabulary=9, max_tokens=6).eval()


@pytest.fixture
def tiny_student(seed: int) -> NAT:
    torch.manual_seed(seed)
    return NAT(TINY, vocabulary=9, max_tokens=6).eval()


@pytest.fixture(scope="session")
def emnat() -> Emnat:
    """The command in a process of its own; no traceback is ever all right."""

    def run(*arguments: str | Path, cwd: Path, stdin: bytes = b"", check: bool = True) -> Done:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "emnat", *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, env=environment, check=False)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert not check or done.returncode == 0, done.stderr.decode()
        return done

    return run
