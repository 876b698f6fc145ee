"""Signals that come twice: at once it is one request, later it is impatience."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# Takes two seconds to save once it is asked to stop.
PROGRAM = """
import time
from emnat import interrupt
try:
    with interrupt.graceful():
        print("working", flush=True)
        while not interrupt.asked():
            time.sleep(0.01)
        time.sleep(2)
        print("saved", flush=True)
        interrupt.stop_if_asked()
except interrupt.Interrupted as ending:
    raise SystemExit(128 + ending.number)
"""


@pytest.mark.parametrize(("pause", "said"), [(0.05, "saved"), (1.0, "")])
def test_only_a_later_second_signal_ends_it_at_once(pause: float, said: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(pause)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert output.strip() == said
    assert process.returncode == 128 + signal.SIGTERM


# Is interrupted while the command is being imported.
BEGINNING = """
import builtins, os, signal, sys, time
from emnat.__main__ import main
plainly = builtins.__import__
def interrupted(name, *rest):
    if name == "emnat.cli":
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(10)
    return plainly(name, *rest)
builtins.__import__ = interrupted
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_anything_is_begun(number: signal.Signals) -> None:
    arguments = [sys.executable, "-c", BEGINNING, str(int(number))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert done.stderr == "emnat: stopped before anything was begun.\n"
