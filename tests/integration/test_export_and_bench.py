"""Exported models through the commands, and the benchmark's output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import emnat as library
from emnat.evaluation import log_probs_of_pairs
from tests.conftest import Emnat


def sources(finished: Path) -> list[str]:
    return (finished / "corpus" / "test.de").read_text(encoding="utf-8").splitlines()[:20]


def test_an_exported_student_translates_like_its_run(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    emnat("export", finished / "run", "fp32", "--precision", "float32", cwd=tmp_path)
    lines = [*sources(finished), "", "Ein Satz."]
    for settings in ({}, {"decoder": "dedup"}, {"length_candidates": 9}):
        wanted = library.load(finished / "run").translate(lines, **settings)
        assert library.load(tmp_path / "fp32").translate(lines, **settings) == wanted
    given = ("\n".join(lines) + "\n").encode()
    assert emnat("translate", "fp32", cwd=tmp_path, stdin=given).stdout.decode().splitlines() == (
        library.load(finished / "run").translate(lines)
    )


def test_int8_is_smaller_and_close(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    for precision in ("float32", "int8"):
        emnat("export", finished / "run", precision, "--precision", precision, cwd=tmp_path)
    sizes = [sum(p.stat().st_size for p in (tmp_path / name).glob("*.onnx")) for name in ("float32", "int8")]
    assert sizes[1] < 0.5 * sizes[0]
    outputs = [library.load(tmp_path / name).translate(sources(finished)) for name in ("float32", "int8")]
    words = [[line.split() for line in lines] for lines in outputs]
    same = sum(a == b for one, other in zip(*words, strict=True) for a, b in zip(one, other, strict=False))
    assert same > 0.6 * sum(map(len, words[0]))


def test_export_explains_what_it_cannot_do(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    for arguments, reason in (
        ((finished / "run", "x", "--format", "ctranslate2"), "is for teachers"),
        ((finished / "run" / "free-1" / "teacher", "x"), "onnx is for students"),
        ((finished / "nothing", "x"), "not a directory"),
    ):
        done = emnat("export", *arguments, cwd=tmp_path, check=False)
        assert done.returncode == 2
        assert reason in " ".join(done.stderr.decode().split())
        assert not (tmp_path / "x").exists()
    emnat("export", finished / "run", "x", cwd=tmp_path)
    done = emnat("export", finished / "run", "x", cwd=tmp_path, check=False)
    assert done.returncode == 2
    again = emnat("export", "x", "y", cwd=tmp_path, check=False)
    assert (again.returncode, b"exported already" in again.stderr) == (2, True)
    alone = ("--length-candidates", "3", "--no-rescore")
    several = emnat("translate", "x", *alone, cwd=tmp_path, stdin=b"Ja.", check=False)
    assert (several.returncode, b"let it rescore" in several.stderr) == (2, True)
    done = emnat("score", "x", cwd=tmp_path, stdin=b"ein Satz\ta sentence\n", check=False)
    assert done.returncode == 2
    assert "translates and does nothing else" in " ".join(done.stderr.decode().split())


def test_a_student_without_a_referee_is_evaluated(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    emnat("export", finished / "run/free-1/student", "alone", "--precision", "float32", cwd=tmp_path)
    texts = ["--source", finished / "corpus/test.de", "--target", finished / "corpus/test.en"]
    rows = json.loads(emnat("evaluate", "alone", *texts, "--latency", "1", "--json", cwd=tmp_path).stdout)
    whole = emnat("evaluate", finished / "run/free-1/student", *texts, "--latency", "0", "--json", cwd=tmp_path)
    wanted = {name: row["bleu"] for name, row in json.loads(whole.stdout).items() if name in rows}
    assert {name: row["bleu"] for name, row in rows.items()} == wanted
    assert set(rows) == {"argmax", "dedup", "odd"}


def test_damage_is_not_exported(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    shutil.copytree(finished / "run/model", tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    done = emnat("export", "model", "x", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert b"its checksum is wrong" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_teacher_for_ctranslate2(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    emnat("export", finished / "run" / "free-1" / "teacher", "ct2", "--format", "ctranslate2", cwd=tmp_path)
    teacher = library.load(finished / "run" / "free-1" / "teacher")
    ids = [teacher.pipeline.encode_source(line) for line in sources(finished)]
    outputs = teacher.translate_ids(ids, beam=3)
    ours = log_probs_of_pairs(teacher, *([np.array(x) for x in side] for side in (ids, outputs)), "")
    pieces = [[teacher.pipeline.vocabulary.pieces(line) for line in side] for side in (ids, outputs)]
    done = emnat("translate", "ct2", cwd=tmp_path, check=False)
    assert (done.returncode, b"a model of CTranslate2" in done.stderr) == (2, True)
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu").score_batch(*pieces)
    # CTranslate2 counts the symbols that we never output in its normaliser: a little less for every token.
    assert [sum(result.log_probs) for result in theirs] == pytest.approx(ours.tolist(), abs=0.3)


def test_bench_prints_rows(emnat: Emnat, tmp_path: Path) -> None:
    small = ("--size", "toy", "--vocabulary", "200", "--tokens", "6", "--runs", "2", "--batch", "2")
    only = ("AR beam 5, emnat", "NAT + ODD, emnat", "AR beam 5, Hugging", "AR 12+1 greedy, CTranslate2, int8")
    chosen = [part for text in only for part in ("--only", text)]
    rows = json.loads(emnat("bench", *small, *chosen, "--json", cwd=tmp_path).stdout)
    wanted = {"name", "engine", "device", "precision", "batch", "target_tokens", "ms_median", "sentences_per_s"}
    assert all(wanted | {"speedup_over_ar_beam5"} <= set(row) for row in rows)
    assert all(row["sentences_per_s"] == pytest.approx(2000 / row["ms_median"]) for row in rows)
    assert [(row["name"], row["engine"], row["precision"]) for row in rows] == [
        ("AR beam 5", "emnat", "float32"),
        ("NAT + ODD", "emnat", "float32"),
        ("NAT + ODD", "emnat (ONNX Runtime)", "float32"),
        ("NAT + ODD", "emnat (ONNX Runtime)", "int8"),
        ("AR beam 5", "Hugging Face MarianMT", "float32"),
        ("AR 12+1 greedy", "CTranslate2", "int8"),
    ]
    shown = emnat("bench", *small, "--only", "NAT + ODD, emnat, float32", cwd=tmp_path).stdout.decode()
    assert "NAT + ODD" in shown
    assert "CTranslate2" not in shown
    training = json.loads(emnat("bench", *small, "--training", "--json", cwd=tmp_path).stdout)
    assert [row["engine"] for row in training] == ["emnat", "torch.nn.Transformer, eager"]
