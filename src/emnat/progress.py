"""How long work shows itself: a bar on a terminal, now and then a line where there is none (stderr in both cases)."""

from __future__ import annotations

import logging
import sys
import time
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

log = logging.getLogger("emnat")
_LINE_EVERY = 20.0  # seconds


class Work:
    """`with Work("distilling", total) as work: work.advance(n, "rate ...")`."""

    def __init__(self, name: str, total: int, done: int = 0) -> None:
        self._name, self._total, self._done, self._first = name, total, done, done
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description:<24}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(name, total=total, completed=done, note="")

    def advance(self, amount: int, note: str = "") -> None:
        self._done += amount
        if self._bar:
            self._bar.update(self._task, advance=amount, note=note)
        elif time.monotonic() - self._last_line > _LINE_EVERY:
            self._last_line = time.monotonic()
            log.info("%s: %d of %d, %s left  %s", self._name, self._done, self._total, self._left(), note)

    def skip(self, amount: int) -> None:
        """What an earlier process has done."""
        self._first += amount
        self._done += amount
        if self._bar:
            self._bar.update(self._task, advance=amount)

    def _left(self) -> str:
        """An estimate, by what this process has done so far."""
        seconds = (time.monotonic() - self._started) / (self._done - self._first) * (self._total - self._done)
        return str(timedelta(seconds=round(seconds)))

    def __enter__(self) -> Work:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        seconds = time.monotonic() - self._started
        if kind is None and seconds > 1.0:  # less is not worth a line
            log.info("%s: done in %.1f s", self._name, seconds)
