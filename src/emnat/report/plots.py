"""The convergence plot: student BLEU, teacher BLEU and NCM by iteration, both branches."""

from __future__ import annotations

import io

import matplotlib

matplotlib.use("svg")  # no screen is needed, and the page takes the drawing as text
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from emnat.report.collect import RunResults, Stage

_COLOURS = {"argmax": "#1f6f8b", "odd": "#c8553d", "teacher": "#6b6b6b", "ncm": "#4a7c59", "unseen": "#b38a2e"}


def convergence_svg(results: RunResults) -> str:
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    students, teachers, modality = figure.subplots(1, 3)
    _line(students, results, lambda row: row["bleu"]["argmax"], "argmax", "one pass, argmax")
    _line(students, results, lambda row: row["bleu"]["odd"], "odd", "one pass, ODD")
    students.set_title("Student BLEU")
    students.legend(frameon=False, fontsize=8)
    _line(teachers, results, lambda row: row["teacher_bleu"], "teacher", "teacher")
    teachers.set_title("Teacher BLEU")
    _line(modality, results, lambda row: row["ncm"], "ncm", "training set")
    if any(stage.row()["ncm_unseen"] for stage in results.stages):
        _line(modality, results, lambda row: row["ncm_unseen"], "unseen", "unseen sources")
    modality.legend(frameon=False, fontsize=8)
    modality.set_title("Multi-modality (NCM)")
    for axes in (students, teachers, modality):
        axes.set_xlabel("EM iteration t")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # of one iteration, "1"
        axes.margins(0.12, 0.15)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    text = drawing.getvalue()
    return text[text.index("<svg") :]


def _line(axes: Axes, results: RunResults, value: Callable[[dict[str, Any]], float], key: str, name: str) -> None:
    """The free branch solid; the bounded one dashed, from the iteration it starts at."""
    free = [stage for stage in results.stages if stage.branch == "free"]
    bounded = [stage for stage in results.stages if stage.branch == "bounded"]
    _draw(axes, free, value, _COLOURS[key], "-o", name)
    if bounded:
        origin = [stage for stage in free if stage.t == bounded[0].t - 1]
        _draw(axes, origin + bounded, value, _COLOURS[key], "--s", f"{name}, with bounds")


def _draw(
    axes: Axes, stages: list[Stage], value: Callable[[dict[str, Any]], float], colour: str, style: str, name: str
) -> None:
    rows = [stage.row() for stage in stages]
    axes.plot([row["t"] for row in rows], [value(row) for row in rows], style, color=colour, label=name, markersize=5)
