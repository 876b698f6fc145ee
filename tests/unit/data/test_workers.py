"""Preparing gives the same bytes with one process, one worker and two."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from emnat.config import build_config
from emnat.data import grammar, prepare


def test_any_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar.write_corpus(tmp_path / "corpus", train=150, valid=10, test=10, seed=1)
    files = grammar.corpus_files(tmp_path / "corpus")
    values = {"run": "x", "data": files, "text": {"moses": True, "vocabulary": 400}}
    found = []
    for block, workers in ((1_000, 1), (40, 1), (40, 2)):
        monkeypatch.setattr(prepare, "_BLOCK", block)
        monkeypatch.setattr(os, "cpu_count", lambda workers=workers: workers)
        folder = tmp_path / f"{block}-{workers}"
        folder.mkdir()
        prepare.prepare_corpus(build_config(values, "test"), folder)
        found.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()})
    assert found[0] == found[1] == found[2]
    assert "train.source.tokens" in found[0]
