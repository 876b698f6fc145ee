"""Several runs side by side: ablations of one setting, or seeds of one recipe."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from emnat.config import differences
from emnat.errors import UserError
from emnat.evaluation import Comparison, compare_outputs
from emnat.report.collect import RunResults, Stage, label

_UNTOLD = ("run", "seed", "data.")  # settings that do not make another method


@dataclass(frozen=True)
class Compared:
    """One run's line: its student, and how that compares with the first run's under the same decoder."""

    run: str
    settings: list[str]  # in which it differs from the first run
    iteration: str
    ncm: float
    teacher_bleu: float | None
    bleu: dict[str, float]
    against_first: dict[str, Comparison]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_runs(runs: Sequence[RunResults], iteration: int | None) -> list[Compared]:
    """The chosen student of each run or, given an iteration, the free branch's student of that one."""
    stages = [_stage(results, iteration) for results in runs]
    references = runs[0].test_text()[1]
    lines = []
    for results, stage in zip(runs, stages, strict=True):
        bleu, found = stage.row()["bleu"], {}
        if results is not runs[0] and results.test_text()[1] == references:
            for decoder in bleu.keys() & stages[0].row()["bleu"].keys():
                outputs = runs[0].outputs(stages[0], decoder), results.outputs(stage, decoder)
                found[decoder] = compare_outputs(*outputs, references, results.run.config.evaluate.lowercase)
        changes = differences(runs[0].run.config, results.run.config)
        told = [change for change in changes if not change.startswith(_UNTOLD)]
        row = stage.row()
        name = str(results.run.directory)
        lines.append(Compared(name, told, label(stage), row["ncm"], row["teacher_bleu"], bleu, found))
    return lines


def print_comparison(lines: Sequence[Compared], console: Console) -> None:
    decoders = list(lines[0].bleu)
    table = Table(title="Student BLEU (p: paired bootstrap against the first run)")
    for heading in ("run", "setting", "iteration", *decoders, "teacher", "NCM"):
        table.add_column(heading, justify="right" if heading in (*decoders, "teacher", "NCM") else "left")
    for line in lines:
        cells = [_cell(line, decoder) for decoder in decoders]
        teacher = "" if line.teacher_bleu is None else f"{line.teacher_bleu:.2f}"
        table.add_row(line.run, "\n".join(line.settings), line.iteration, *cells, teacher, f"{line.ncm:.3f}")
    if len(lines) > 1 and not any(line.settings for line in lines):
        table.add_row("mean ± sd", "", "", *(_spread([line.bleu[d] for line in lines]) for d in decoders), "", "")
    console.print(table)


def _stage(results: RunResults, iteration: int | None) -> Stage:
    if iteration is None:
        return results.final or results.stages[-1]
    for stage in results.stages:
        if stage.t == iteration and stage.branch == "free":
            return stage
    raise UserError(f"{results.run.directory}: iteration {iteration} has not been measured in this run.")


def _cell(line: Compared, decoder: str) -> str:
    against = line.against_first.get(decoder)
    return f"{line.bleu[decoder]:.2f}" + (f" (p {against.p:.3f})" if against else "")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
