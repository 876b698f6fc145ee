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
