"""Gathers what a run has measured. Reads artifacts, computes nothing new."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from emnat.artifacts import check_artifact, read_facts, read_manifest, write_atomically
from emnat.data import Sequences, reported_set
from emnat.errors import UserError
from emnat.text import load_pipeline, read_lines
from emnat.workspace import Run


@dataclass(frozen=True)
class Stage:
    """One iteration, or the larger final student."""

    name: str
    t: int
    branch: str
    measures: dict[str, Any]
    targets: dict[str, float]  # what the E-step before it changed; of the first iteration, nothing

    def row(self) -> dict[str, Any]:
        """The line of this iteration in `report --json`."""
        teacher = self.measures.get("teacher", {})
        return {
            "t": self.t,
            "branch": self.branch,
            "ncm": self.measures["ncm"],
            "ncm_unseen": self.measures.get("ncm_unseen"),
            "cm": self.measures["cm"],
            "validation": self.measures["validation"],
            "teacher_bleu": teacher.get(beam_among(teacher), {}).get("bleu"),
            "teacher_greedy_bleu": teacher.get("greedy", teacher.get("beam_1", {})).get("bleu"),
            "bleu": {decoder: scores["bleu"] for decoder, scores in self.measures["student"].items()},
            "length_ratio": {
                decoder: scores["length_ratio"] for decoder, scores in (teacher | self.measures["student"]).items()
            },
            "targets": self.targets,
        }


@dataclass(frozen=True)
class RunResults:
    run: Run
    stages: list[Stage]  # the free branch, then the bounded one
    final: Stage | None  # the chosen student's iteration; None while the run is under way
    larger: Stage | None

    @property
    def baseline(self) -> Stage:
        return self.stages[0]

    @property
    def reported_set(self) -> str:
        return reported_set(self.run.artifact("data"))

    @property
    def set_in_words(self) -> str:
        return "test set" if self.reported_set == "test" else "validation set"

    @property
    def caveat(self) -> str:
        if self.reported_set == "test":
            return ""
        return "There is no test set: the student was chosen by these very sentences, so expect less of others."

    @property
    def signature(self) -> str:
        return str(self.baseline.measures["student"]["argmax"]["signature"])

    @cached_property
    def latency(self) -> dict[str, dict[str, Any]]:
        return _read_latency(self.run.artifact("model"))

    @cached_property
    def latency_of_larger(self) -> dict[str, dict[str, Any]]:
        return _read_latency(self.run.artifact("larger/model"))

    @property
    def machine(self) -> dict[str, str | None]:
        """The hardware and the PyTorch that measured; runs of an older emnat noted them beside latencies only."""
        noted = [*self.latency.values(), self.stages[-1].measures]
        return {key: next((entry[key] for entry in noted if key in entry), None) for key in ("hardware", "torch")}

    @property
    def versions(self) -> dict[str, str | None]:
        """Of the programs that measured."""
        emnat = read_manifest(self.run.artifact(f"{self.stages[-1].name}/measures")).emnat
        return {"emnat": emnat, "torch": self.machine["torch"]}

    def as_json(self) -> dict[str, Any]:
        return {
            "iterations": [stage.row() for stage in self.stages],
            "final": self.final.row() if self.final else None,
            "larger": self.larger.row() if self.larger else None,
            "signature": self.signature,
            "latency_ms": {name: entry["ms"] for name, entry in self.latency.items()},
            "latency_ms_of_larger": {name: entry["ms"] for name, entry in self.latency_of_larger.items()},
            "hardware": self.machine["hardware"],
            "seed": self.run.config.seed,
            "seconds": seconds_of(self.run),
            "versions": self.versions,
            "config": self.run.config.model_dump(exclude_none=True),
        }

    def outputs(self, stage: Stage, decoder: str) -> list[str]:
        return list(read_lines(self.run.artifact(f"{stage.name}/measures/{decoder}.txt")))

    def test_text(self) -> tuple[list[str], list[str]]:
        """Sources and processed references of the set that is reported on."""
        folder, name = self.run.artifact("data"), self.reported_set
        return list(read_lines(folder / f"{name}.source.txt")), list(read_lines(folder / f"{name}.processed.txt"))

    def changing_targets(self, count: int) -> list[list[tuple[str, str]]]:
        """How what the student learned for a source changed (the paper's Table 9): the liveliest of the first 5,000."""
        folder = self.run.artifact("data")
        pipeline = load_pipeline(folder, self.run.config.text)
        columns = [("source", Sequences(folder, "train.source")), ("ground truth", Sequences(folder, "train.target"))]
        for stage in self.stages:
            for kind in ("distilled", "targets"):  # a student that is not amortised learns the selected targets
                path = self.run.artifact(f"{stage.name}/{kind}")
                if (path / "train.target.tokens").exists():  # it may have been emptied
                    check_artifact(path)
                    columns.append((label(stage), Sequences(path, "train.target")))
                    break
        rows = range(min(5_000, len(columns[0][1])))
        variety = {i: len({tuple(sequences[i]) for _, sequences in columns[2:]}) for i in rows}
        chosen = sorted(rows, key=lambda i: (-variety[i], i))[:count]
        return [[(name, pipeline.decode_target(sequences[i].tolist())) for name, sequences in columns] for i in chosen]


def collect(run: Run) -> RunResults:
    found = {stage.name: stage for path in run.directory.glob("*/measures") if (stage := _read_stage(path))}
    stages = sorted(
        (stage for stage in found.values() if stage.branch != "larger"),
        key=lambda stage: (stage.branch == "bounded", stage.t),
    )
    if not stages:
        raise UserError(f"{run.directory}: nothing has been measured yet: continue it with the command that began it.")
    check_artifact(run.artifact("data"))
    model = run.artifact("model")
    if model.exists():
        check_artifact(model)
    chosen = str(read_facts(model)["student"]).split("/")[0] if model.exists() else None
    for name in ("free-1", chosen):
        if name is not None and name not in found:
            raise UserError(f"{run.directory / name / 'measures'}: missing: run 'emnat train' again to make it anew.")
    final = found[chosen] if chosen else None
    return RunResults(run, stages, final, found.get("larger"))


def seconds_of(run: Run) -> dict[str, float]:
    """How long every artifact took."""
    paths = [path.parent for path in sorted(run.directory.glob("**/manifest.json"))]
    unfinished = (".partial", ".replaced")
    found = [read_manifest(path) for path in paths if not any(part.endswith(unfinished) for part in path.parts)]
    return {manifest.artifact: manifest.seconds for manifest in found if manifest.seconds}


def write_results_file(results: RunResults) -> None:
    """`results.jsonl`: every number with its signature, one a line."""
    lines = []
    for stage in [*results.stages, *([results.larger] if results.larger else [])]:
        common = {"stage": stage.name, "t": stage.t, "branch": stage.branch}
        for metric in ("ncm", "ncm_unseen", "cm", "validation"):
            if metric in stage.measures:
                lines.append(common | {"metric": metric, "value": stage.measures[metric]})
        for model in ("student", "teacher"):
            for decoder, scores in stage.measures.get(model, {}).items():
                signatures = {"bleu": scores["signature"], "bleu_detokenised": scores["signature_detokenised"]}
                for metric, value in scores.items():
                    if not metric.startswith("signature"):
                        lines.append(
                            common
                            | {"model": model, "decoder": decoder, "metric": metric, "value": value}
                            | {"signature": signatures.get(metric)}
                        )
    for model, latency in (("model", results.latency), ("larger/model", results.latency_of_larger)):
        for decoder, entry in latency.items():
            lines.append({"stage": model, "decoder": decoder, "metric": "latency_ms", "value": entry["ms"]} | entry)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(results.run.directory / "results.jsonl", text.encode())


def _read_latency(model: Path) -> dict[str, dict[str, Any]]:
    path = model / "latency.json"
    return json.loads(path.read_text()) if path.exists() else {}


def beam_among(searches: Iterable[str]) -> str:
    """`beam_5`, say."""
    return next((name for name in searches if name.startswith("beam_")), "beam")


def label(stage: Stage) -> str:
    """`t = 3`, or `t = 3 (bounded)`."""
    return f"t = {stage.t}" if stage.branch == "free" else f"t = {stage.t} ({stage.branch})"


def _read_stage(path: Path) -> Stage | None:
    name = path.parent.name
    match = re.fullmatch(r"(free|bounded)-(\d+)", name)
    if not match and name != "larger":
        return None
    check_artifact(path)
    measures = json.loads((path / "measures.json").read_text())
    selected = path.with_name("targets")
    targets = read_facts(selected) if selected.exists() else {}
    return Stage(name, int(match[2]) if match else 0, match[1] if match else "larger", measures, targets)
