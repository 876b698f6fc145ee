"""How long work says that it will take."""

from __future__ import annotations

import logging

import pytest

from emnat import progress
from emnat.progress import Work


def test_what_an_earlier_process_did_took_no_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with caplog.at_level(logging.INFO, "emnat"), Work("searching", 1_000) as work:
        work.skip(600)
        clock[0] = 100.0
        work.advance(100, "1 sentence/s")
    assert caplog.messages[0] == "searching: 700 of 1000, 0:05:00 left  1 sentence/s"
