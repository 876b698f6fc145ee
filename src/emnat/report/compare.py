"""Several runs side by side: ablations of one setting, or seeds of one recipe."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

from emnat.config import differences
from emnat.errors import UserError
from emnat.evaluation import Comparison, compare_outputs
from emnat.report.collect import RunResults, Stage, label

# Settings that make no other student,
_SAME_METHOD = ["run", "seed", "device", "data.train", "data.valid", "data.test", "larger_student", "decode.tokens"]
_SAME_METHOD += ["evaluate.latency_sentences", "evaluate.latency_runs"]
# and none of an iteration that is named.
_SAME_ITERATION = ["em.iterations", "em.free_iterations", "em.patience"]


@dataclass(frozen=True)
class Compared:
    """One run's line: its student, and how that compares with the first run's under the same decoder."""

    run: str
    settings: list[str]  # in which it differs from the first run
    iteration: str
    validation: float
    ncm: float
    ncm_unseen: float | None
    teacher_bleu: float
    bleu: dict[str, float]
    against_first: dict[str, Comparison]
    same_test_set: bool = True  # as the first run's

    @property
    def shown(self) -> dict[str, str]:
        """Decoders by their headings; with several lengths, as many as this run tries."""
        names = ["argmax", "dedup", "odd", *(name for name in self.bleu if name.startswith("odd_"))]
        return dict(zip(("argmax", "dedup", "odd", "rescored"), names, strict=False))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_runs(runs: Sequence[RunResults], iteration: int | None) -> list[Compared]:
    """The chosen student of each run or, given an iteration, the free branch's student of that one."""
    stages = [_stage(results, iteration) for results in runs]
    references = runs[0].test_text()[1]
    lines = []
    for results, stage in zip(runs, stages, strict=True):
        bleu, found = stage.row()["bleu"], {}
        same = results.test_text()[1] == references
        if results is not runs[0] and same:
            for decoder in bleu.keys() & stages[0].row()["bleu"].keys():
                outputs = runs[0].outputs(stages[0], decoder), results.outputs(stage, decoder)
                found[decoder] = compare_outputs(*outputs, references, results.run.config.evaluate.lowercase)
        untold = _SAME_METHOD if iteration is None else _SAME_METHOD + _SAME_ITERATION
        told = differences(runs[0].run.config, results.run.config, untold)
        measured = {name: stage.row()[name] for name in ("validation", "ncm", "ncm_unseen", "teacher_bleu", "bleu")}
        name = str(results.run.directory)
        lines.append(Compared(name, told, label(stage), **measured, against_first=found, same_test_set=same))
    return lines


def print_comparison(lines: Sequence[Compared], console: Console) -> None:
    """The essentials; `--json` has every decoder with its p."""
    decoders = max((line.shown for line in lines), key=len)
    caption = "▲ ▼ better, worse than the first (paired bootstrap, p < 0.05). AR: the teacher of that t"
    table = Table(title="Student BLEU", caption=caption, box=SIMPLE_HEAVY, pad_edge=False, collapse_padding=True)
    table.add_column("run", overflow="fold")
    table.add_column("t")
    for heading in ("valid", *decoders, "AR", "NCM"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        cells = [_cell(line, heading) for heading in decoders]
        iteration, valid = line.iteration.removeprefix("t = "), f"{line.validation:.2f}"
        table.add_row(_name(line), iteration, valid, *cells, f"{line.teacher_bleu:.2f}", f"{line.ncm:.3f}")
    if len(lines) > 1 and not any(line.settings or not line.same_test_set for line in lines):  # seeds of one recipe
        columns = [[line.bleu[decoder] for line in lines] for decoder in decoders.values()]
        columns = [[line.validation for line in lines], *columns, [line.teacher_bleu for line in lines]]
        for name, summary in (("mean", statistics.mean), ("sd", statistics.stdev)):
            ncm = summary([line.ncm for line in lines])
            table.add_row(name, "", *(f"{summary(column):.2f}" for column in columns), f"{ncm:.3f}")
    console.print(table)
    for line in lines:
        another = [] if line.same_test_set else ["another test set: its BLEU cannot be compared"]
        if notes := another + line.settings:
            console.print(f"{_name(line)}: {', '.join(notes)}", soft_wrap=True, markup=False, highlight=False)


def _name(line: Compared) -> str:
    return Path(line.run).name


def _stage(results: RunResults, iteration: int | None) -> Stage:
    if iteration is None:
        return results.final or results.stages[-1]
    for stage in results.stages:
        if stage.t == iteration and stage.branch == "free":
            return stage
    raise UserError(f"{results.run.directory}: iteration {iteration} has not been measured in this run.")


def _cell(line: Compared, heading: str) -> str:
    if heading not in line.shown:
        return ""
    decoder = line.shown[heading]
    against = line.against_first.get(decoder)
    better, worse = (against.better, against.worse) if against else (False, False)
    return f"{line.bleu[decoder]:.2f}" + " ▲" * better + " ▼" * worse
