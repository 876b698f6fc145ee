"""A full EM run through the commands, and every command on its result."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch

import emnat as library
from emnat.artifacts import read_facts, read_manifest
from emnat.report import collect
from emnat.report.tables import main_rows
from emnat.workspace import find_run
from tests.conftest import Emnat


def checksums(run: Path) -> dict[str, str]:
    """Of everything but timings."""
    files = [path for path in run.rglob("*") if path.is_file()]
    kept = {".safetensors", ".tokens", ".npy", ".txt"}
    keep = [path for path in files if path.suffix in kept or path.name == "measures.json"]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in keep}


def test_train_makes_every_artifact(finished: Path) -> None:
    run = finished / "run"
    for name in (
        "data",
        "free-1/teacher",
        "free-1/distilled",
        "free-1/student",
        "free-1/measures",
        "free-1/candidates",
        "free-1/scores",
    ):
        assert (run / name / "manifest.json").exists(), name
    for name in ("free-2/targets", "free-2/teacher", "free-2/student", "free-2/measures", "model"):
        assert (run / name / "manifest.json").exists(), name
    assert {"model.safetensors", "config.json", "tokenizer.model"} <= {p.name for p in (run / "model").iterdir()}
    assert not list(run.rglob("*.partial"))
    assert not list(run.rglob("*.tmp"))
    assert list((run / "tensorboard").rglob("events*"))


def test_report_json(finished: Path, emnat: Emnat) -> None:
    report = json.loads(emnat("report", "run", "--json", cwd=finished).stdout)
    assert [(row["t"], row["branch"]) for row in report["iterations"]][:2] == [(1, "free"), (2, "free")]
    decoders = {"argmax", "dedup", "odd", "argmax_9", "dedup_9", "odd_9"}
    for row in [*report["iterations"], report["final"]]:
        assert set(row["bleu"]) == decoders
        assert 0 <= row["teacher_bleu"] <= 100
        assert row["ncm"] > 0
    assert report["final"] in report["iterations"]
    assert "tok:none" in report["signature"]
    assert report["seconds"]["free-1/teacher"] > 0
    assert report["versions"]["torch"] == torch.__version__
    assert report["config"]["seed"] == report["seed"]
    name = "+ EM" if report["final"]["t"] > 1 else "NAT baseline"  # where EM has brought nothing
    assert {claim["better"] for claim in report["significance"]} >= {f"{name} + ODD", f"{name} + ODD, rescored"}
    gap = report["iterations"][0]["teacher_bleu"] - report["iterations"][0]["bleu"]["argmax"]
    come = report["final"]["bleu"]["odd"] - report["iterations"][0]["bleu"]["argmax"]
    assert report["gap_closed"][f"{name} + ODD"] == pytest.approx(come / gap)


def test_report_of_a_run_under_way(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    """Nothing has been timed yet; what measured, and where, is known all the same."""
    shutil.copytree(finished / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/model")
    report = json.loads(emnat("report", "run", "--json", cwd=tmp_path).stdout)
    assert (report["final"], report["latency_ms"]) == (None, {})
    assert report["hardware"].startswith("cpu (")
    assert report["versions"]["torch"] == torch.__version__


def test_report_of_a_baseline_measured_on_validation(workplace: Path, emnat: Emnat) -> None:
    """Nothing is said to be EM's where there was no EM, nor to be of a test set where there is none."""
    short = [f"{model}.training.steps=40" for model in ("teacher", "student")]
    shown = emnat("train", "config.toml", "data.test=[]", "em.iterations=1", *short, cwd=workplace)
    page = (workplace / "run/report.html").read_text()
    for text in (shown.stdout.decode(), page):
        assert "+ EM" not in text
        assert "validation set" in text
        assert "test set" not in text.replace("There is no test set", "")
    assert "NAT baseline + ODD" in page
    report = json.loads(emnat("report", "run", "--json", cwd=workplace).stdout)
    assert {claim["better"] for claim in report["significance"]} == {
        "NAT baseline + ODD",
        "NAT baseline + ODD, rescored",
    }
    assert all(claim["better"] != claim["than"] for claim in report["significance"])


def test_report_page_is_self_contained(finished: Path, emnat: Emnat) -> None:
    emnat("report", "run", "--page", "page.html", cwd=finished)
    page = (finished / "page.html").read_text()
    for heading in ("Results", "Convergence", "How the training targets change", "The decoders side by side"):
        assert heading in page
    assert "<svg" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    rows = [json.loads(line) for line in (finished / "run/results.jsonl").read_text().splitlines()]
    assert all(row["signature"] for row in rows if row["metric"] == "bleu")
    assert {"ncm", "bleu", "chrf", "accuracy", "latency_ms"} <= {row["metric"] for row in rows}


def test_running_again_changes_nothing(finished: Path, emnat: Emnat) -> None:
    before = checksums(finished / "run")
    emnat("train", "config.toml", cwd=finished)
    assert checksums(finished / "run") == before


def test_rebuilding_a_lost_stage_gives_the_same_bytes(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    """A run that lost everything after its first student, in another place, ends as the whole one."""
    shutil.copytree(finished, tmp_path / "moved")
    run = tmp_path / "moved/run"
    for name in ("free-1/measures", "free-1/candidates", "free-1/scores", "free-2", "model"):
        shutil.rmtree(run / name)
    emnat("train", "config.toml", cwd=tmp_path / "moved")
    assert checksums(run) == checksums(finished / "run")


def test_a_slim_run_goes_on_as_a_whole_one(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    whole, slim = tmp_path / "whole", tmp_path / "slim"
    shutil.copytree(finished, whole)
    emnat("train", "config.toml", "em.patience=9", "em.iterations=3", cwd=whole)
    shutil.copytree(whole, slim)
    emptied = emnat("slim", "run", cwd=slim).stdout.decode()
    assert "freed" in emptied
    assert len(checksums(slim / "run")) < len(checksums(whole / "run"))
    assert (slim / "run/free-1/teacher/model.safetensors").exists()  # the referee
    assert b"nothing to delete" in emnat("slim", "run", cwd=slim).stdout
    for folder in (whole, slim):
        emnat("train", "config.toml", "em.patience=9", "em.iterations=4", cwd=folder)
    left, wanted = checksums(slim / "run"), checksums(whole / "run")
    assert left == {name: wanted[name] for name in left}
    assert any(name.startswith(("free-4/", "bounded-4/")) for name in left)
    same = json.loads(emnat("report", "whole/run", "slim/run", "--iteration", "1", "--json", cwd=tmp_path).stdout)
    assert same[0]["bleu"] == same[1]["bleu"]
    assert same[1]["settings"] == []
    assert same[1]["report"]["config"]["em"]["iterations"] == 4
    assert not any(found["p"] < 0.05 for found in same[1]["against_first"].values())
    assert b"mean" in emnat("report", "whole/run", "slim/run", cwd=tmp_path).stdout


def test_any_model_of_a_run_is_evaluated_on_its_test_set(finished: Path, emnat: Emnat) -> None:
    report = json.loads(emnat("report", "run", "--json", cwd=finished).stdout)
    for model, decoder in (("student", "odd"), ("teacher", "beam_5")):
        printed = emnat("evaluate", f"run/free-1/{model}", "--latency", "0", "--json", cwd=finished).stdout
        first = report["iterations"][0]
        wanted = first["bleu"]["odd"] if model == "student" else first["teacher_bleu"]
        assert json.loads(printed)[decoder]["bleu"] == pytest.approx(wanted)


def test_runs_that_ended_otherwise_are_no_seeds_of_one_recipe(finished: Path, emnat: Emnat, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(finished / "run", tmp_path / name)
    iterations = json.loads(emnat("report", "a", "--json", cwd=tmp_path).stdout)["config"]["em"]["iterations"]
    emnat("train", "config.toml", f"run={tmp_path / 'b'}", "em.iterations=1", cwd=finished)
    lines = json.loads(emnat("report", "a", "b", "--json", cwd=tmp_path).stdout)
    assert [line["settings"] for line in lines] == [[], [f"em.iterations: {iterations} → 1"]]
    shown = emnat("report", "a", "b", cwd=tmp_path).stdout.decode()
    assert "b: em.iterations" in shown
    assert "mean" not in shown
    assert "mean" in emnat("report", "a", "b", "--iteration", "1", cwd=tmp_path).stdout.decode()


def test_translate_is_a_filter(finished: Path, emnat: Emnat) -> None:
    source = (finished / "corpus/test.de").read_bytes()
    lines = source.split(b"\n")
    lines.insert(3, b"")
    out = emnat("translate", "run", cwd=finished, stdin=b"\n".join(lines)).stdout.split(b"\n")
    assert len(out) == len(lines)
    assert out[3] == b""
    again = emnat("translate", "run", "--block", "7", cwd=finished, stdin=b"\n".join(lines)).stdout.split(b"\n")
    assert again == out
    translator = library.load(finished / "run")
    assert translator.translate([source.decode().split("\n")[0]], decoder="odd") == [out[0].decode()]
    rescored = translator.translate(["ein Satz"], decoder="odd", length_candidates=9, rescore=True)
    assert len(rescored) == 1
    teacher = emnat("translate", "run/free-1/teacher", "--beam", "3", cwd=finished, stdin=source).stdout
    assert teacher.count(b"\n") == source.count(b"\n")


def test_score_is_a_filter(finished: Path, emnat: Emnat) -> None:
    stdin = b"Der Arzt hat gelacht.\tThe doctor laughed.\n\t\nDer Arzt hat gelacht.\tHat hat hat.\n"
    right, empty, wrong = map(float, emnat("score", "run/free-1/teacher", cwd=finished, stdin=stdin).stdout.split())
    assert wrong < right < 0
    assert math.isinf(empty)
    long = ("wort " * 300 + "\tword\n").encode()
    done = emnat("score", "run", cwd=finished, stdin=long)
    assert float(done.stdout) == -math.inf
    assert b"line 1" in done.stderr


def test_evaluate(finished: Path, emnat: Emnat) -> None:
    rows = json.loads(emnat("evaluate", "run", "--latency", "2", "--json", cwd=finished).stdout)
    report = json.loads(emnat("report", "run", "--json", cwd=finished).stdout)
    assert {name: row["bleu"] for name, row in rows.items()} == pytest.approx(report["final"]["bleu"])
    assert all(row["latency_ms"] > 0 for row in rows.values())
    assert rows["odd"]["repeat_rate"] <= rows["argmax"]["repeat_rate"]
    files = ["--source", "corpus/test.de", "--target", "corpus/test.en", "--latency", "0"]
    table = emnat("evaluate", "run/free-1/teacher", *files, cwd=finished).stdout.decode()
    assert "beam_5" in table


def test_prepare_shows_what_was_dropped(workplace: Path, emnat: Emnat) -> None:
    with (workplace / "corpus/train.de").open("a") as de, (workplace / "corpus/train.en").open("a") as en:
        de.write("\nein Wort\n" + "x " * 300 + "\n")
        en.write("nothing there\n" + "a b c d e f g h i j k\n" + "x " * 300 + "\n")
    table = emnat("prepare", "config.toml", cwd=workplace).stdout.decode()
    for reason in ("empty", "length ratio", "too long"):
        assert re.search(rf"train: {reason}\W+1\b", table)
    assert re.search(r"train: read\W+303\b", table)


def test_settings_of_the_method(workplace: Path, emnat: Emnat) -> None:
    """Not amortised, warm start, another rule, a larger final student, no test set: all in one small run."""
    changes = ["em.amortised=false", "em.warm_start=true", "em.rule=posterior"]
    larger = {"encoder_layers": 2, "decoder_layers": 1, "hidden": 96, "filter": 96, "heads": 8}
    changes += [f"larger_student.{name}={size}" for name, size in larger.items()]
    changes += ["larger_student.training.steps=10", "larger_student.training.validate_every=10", "data.test=[]"]
    changes += ["teacher.training.steps=20", "student.training.steps=20", "em.bounds=false", "em.patience=9"]
    changes += ["teacher.training.warm_steps=10"]
    emnat("train", "config.toml", *changes, cwd=workplace)
    report = json.loads(emnat("report", "run", "--json", cwd=workplace).stdout)
    assert len(report["iterations"]) == 2
    assert set(report["larger"]["bleu"]) == set(report["final"]["bleu"])
    times = [report["latency_ms"], report["latency_ms_of_larger"]]
    emnat("report", "run", cwd=workplace)
    written = [json.loads(line) for line in (workplace / "run/results.jsonl").read_text().splitlines()]
    timed = [row for row in written if row["metric"] == "latency_ms"]
    for model, ms in zip(("model", "larger/model"), times, strict=True):
        assert {row["decoder"]: row["value"] for row in timed if row["stage"] == model} == ms
    rows = main_rows(collect(find_run(workplace / "run")))
    assert [row.name for row in rows[:2]] == ["AR teacher (beam 5)", "AR teacher (greedy)"]
    assert [row.speed_up for row in rows[:2]] == [1, times[0]["beam_5"] / times[0]["greedy"]]
    assert [row.speed_up for row in rows[-2:]] == [ms["beam_5"] / ms["odd"] for ms in times]  # own teachers
    assert report["iterations"][1]["targets"]["length"] > 0
    assert not (workplace / "run/free-2/distilled").exists()
    trained = [workplace / f"run/free-{t}/{model}" for t in (1, 2) for model in ("teacher", "student")]
    assert [read_facts(folder)["steps"] for folder in trained] == [20, 20, 10, 20]
    best = f"free-{report['final']['t']}"
    learned = f"{best}/targets" if best == "free-2" else f"{best}/distilled"
    assert read_manifest(workplace / "run/larger/student").parents == [learned, f"{best}/student"]
    assert emnat("translate", "run/larger/model", cwd=workplace, stdin=b"Ja.\n").stdout.count(b"\n") == 1
