"""The `emnat` command, also as `python -m emnat`. Signals have an answer while PyTorch, which takes seconds, comes."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    from emnat.cli import main as run_command  # noqa: PLC0415  # this takes the seconds

    for number, handler in handlers.items():
        signal.signal(number, handler)
    run_command()


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"emnat: stopped before anything was begun.\n")
    os._exit(128 + number)


if __name__ == "__main__":  # not in the processes that `bench` starts
    main()
