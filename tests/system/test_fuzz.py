"""A few thousand cases of the fuzzing harness, other ones in every run; a million are recorded in docs/results."""

from __future__ import annotations

import os
from pathlib import Path

from tests.system import fuzz


def test_no_input_crashes_hangs_or_breaks_lines(tmp_path: Path, seed: int) -> None:
    cases, refused, failures = fuzz.fuzz(tmp_path, seed, range(int(os.environ.get("EMNAT_FUZZ", "5000"))))
    assert not failures
    assert set(cases) == set(fuzz.SHARES)
    assert refused["lines"]


def test_a_line_of_a_megabyte(tmp_path: Path) -> None:
    """It is one line, and stays one, in a file and through the tokeniser and the translator."""
    targets = fuzz.Targets(tmp_path)
    line = "ein Wort \u2028 und noch eines " * 40_000
    path = tmp_path / "long"
    path.write_text(line + "\nkurz\n", encoding="utf-8")
    assert list(fuzz.read_lines(path)) == [line, "kurz"]
    pipeline = targets.pipelines[0]
    assert pipeline.decode_target(pipeline.encode_target(line)) == line
    assert len(list(targets.translator.stream(iter([line, "kurz"])))) == 2
