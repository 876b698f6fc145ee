"""Ctrl-C and SIGTERM: work stops at the next place it can be continued from, or after some seconds wherever it is.

The second is no loss either: what is on disk is whole at any instant (artifacts.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

_GRACE = 8.0  # seconds between the signal and the end, if no such place comes
_AT_ONCE = 0.5  # seconds within which a second signal is the first again: `timeout` sends each to process and group
CONTINUE = "run the same command again to continue"
_asked: int | None = None
_usual: dict[signal.Signals, Any] = {}


class Interrupted(KeyboardInterrupt):
    """Raised where work can stop; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def asked() -> bool:
    return _asked is not None


def stop_if_asked() -> None:
    if _asked is not None:
        raise Interrupted(_asked)


def leave_at_once() -> None:
    """While a command is on its way: the two signals end the process, in a sentence. Until `as_usual` is called."""
    _usual.update({number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)})


def as_usual() -> None:
    """A command begins, and has its own answers."""
    for number, handler in _usual.items():
        signal.signal(number, handler)
    _usual.clear()


@contextlib.contextmanager
def graceful() -> Iterator[None]:
    """Within, the two signals only ask. (Outside of a program's main thread, signals are somebody else's.)"""
    global _asked  # noqa: PLW0603  # a signal reaches the whole process
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    handlers = {number: signal.signal(number, _ask) for number in (signal.SIGINT, signal.SIGTERM)}
    # Python's handlers wait until a long call into a library is over; a thread at the end of this pipe does not.
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read_end,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(write_end)
        _asked = None


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"emnat: stopped before anything was begun.\n")
    os._exit(128 + number)


def _ask(number: int, frame: FrameType | None) -> None:
    global _asked  # noqa: PLW0603
    _asked = number


def _watch(read_end: int) -> None:
    """Ends the process if it has not ended, or been asked a second time, in time."""
    received = os.read(read_end, 1)
    if received:
        time.sleep(_AT_ONCE)
        if select.select([read_end], [], [], 0)[0]:
            os.read(read_end, 100)
    if received and (not select.select([read_end], [], [], _GRACE - _AT_ONCE)[0] or os.read(read_end, 1)):
        sys.stderr.write(f"emnat: stopped; {CONTINUE} from what was saved last.\n")
        sys.stderr.flush()
        os._exit(128 + received[0])
    os.close(read_end)
