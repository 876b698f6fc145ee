"""The paper's tables for a run, on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

from emnat.report.claims import Claim, chosen_name, gap_closed
from emnat.report.collect import RunResults, Stage, beam_among, label

_LONGEST_WORD = len("post-de-duplication,")


@dataclass(frozen=True)
class MainRow:
    """A line of the results table: BLEU in one pass, BLEU with length candidates rescored, and how fast.

    Speed-ups are over the teacher as it was timed beside this very model: machines differ from day to day.
    """

    name: str
    single: float | None
    rescored: float | None = None
    ms: float | None = None
    rescored_ms: float | None = None
    speed_up: float | None = None
    rescored_speed_up: float | None = None


def main_rows(results: RunResults) -> list[MainRow]:
    """Teacher; baseline and + EM, each with every decoder; larger student (the paper's Tables 3, 4 and 7)."""
    final = results.final or results.stages[-1]
    rows = _teacher_rows(results)
    rows += _decoder_rows(results, results.baseline, "NAT baseline", " (distilled)")
    if final is not results.baseline:
        rows += _decoder_rows(results, final, "+ EM", f" (t = {final.t})")
    if results.larger:
        rows.append(_student_row(results, results.larger, "odd", f"{chosen_name(results)} + ODD, larger student"))
    return rows


def main_table(results: RunResults) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of the results table, as the terminal and the page show it."""
    candidates = results.run.config.decode.length_candidates
    head = ["model", "BLEU", "ms", "speed-up", f"BLEU, {candidates} lengths rescored", "ms", "speed-up"]
    lines = [
        [
            row.name,
            number(row.single),
            number(row.ms),
            number(row.speed_up, 1, "×"),
            number(row.rescored),
            number(row.rescored_ms),
            number(row.rescored_speed_up, 1, "×"),
        ]
        for row in main_rows(results)
    ]
    return head, lines


def print_tables(results: RunResults, made: list[Claim], console: Console) -> None:
    console.print(_printed_main_table(results))
    console.print(_convergence_table(results))
    console.print(_claims_table(results, made))
    console.print(f"BLEU: {results.signature}. {timing_note(results)}".rstrip(), style="dim")
    if results.caveat:
        console.print(results.caveat, style="yellow")
    if not results.final:
        console.print("This run is not finished; 'emnat train' goes on with it.", style="yellow")


def timing_note(results: RunResults) -> str:
    """How the milliseconds and speed-ups of the results table came about."""
    if not results.latency:
        return ""
    entry = next(iter(results.latency.values()))
    timed = [*results.latency.values(), *results.latency_of_larger.values()]
    note = (
        f"Milliseconds a sentence at batch 1, median of {entry['runs']} runs{_spread(timed)} over "
        f"{entry['sentences']} sentences, {entry['hardware']}, PyTorch {entry['torch']}; the models of t = 1, as large "
        "as the chosen ones, have their times."
    )
    beside_larger = _ms(results.latency_of_larger, beam_among(results.latency_of_larger))
    if beside_larger is None:
        return note
    return f"{note} The larger student was timed beside a teacher of {number(beside_larger)} ms."


def _spread(timed: list[dict[str, Any]]) -> str:
    """How far the runs of one decoder lie apart at most; an older emnat did not note it."""
    if not all("ms_slowest" in entry and entry["runs"] > 1 for entry in timed):
        return ""
    widest = max((entry["ms_slowest"] - entry["ms_fastest"]) / entry["ms"] for entry in timed)
    return f" (up to {widest:.0%} apart)"


def _table(title: str) -> Table:
    """Narrow, so that a terminal of 80 columns need not break words."""
    return Table(title=title, box=SIMPLE_HEAVY, pad_edge=False, collapse_padding=True)


def _printed_main_table(results: RunResults) -> Table:
    head, lines = main_table(results)
    table = _table(f"Results on the {results.set_in_words} ({results.run.directory})")
    table.add_column(head[0], overflow="fold", min_width=_LONGEST_WORD)
    for heading in head[1:]:
        table.add_column(heading, justify="right", max_width=len("speed-up"))
    for line in lines:
        table.add_row(*line)
    return table


def _convergence_table(results: RunResults) -> Table:
    table = _table("Convergence")
    table.add_column("iteration")
    for heading in ("student, argmax", "student, ODD", "teacher", "NCM", "NCM, unseen", "valid"):
        table.add_column(heading, justify="right")
    for stage in results.stages:
        row = stage.row()
        chosen = " ←" if results.final and stage.name == results.final.name else ""
        table.add_row(
            label(stage) + chosen,
            number(row["bleu"]["argmax"]),
            number(row["bleu"]["odd"]),
            number(row["teacher_bleu"]),
            number(row["ncm"], 3),
            number(row["ncm_unseen"], 3),
            number(row["validation"]),
        )
    return table


def _claims_table(results: RunResults, made: list[Claim]) -> Table:
    shares = gap_closed(results)
    table = _table("Better than the step before? (paired bootstrap)")
    for heading in ("", "than"):
        table.add_column(heading, overflow="fold", min_width=_LONGEST_WORD)
    for heading in ("BLEU", "p", "gap closed"):
        table.add_column(heading, justify="right")
    for claim in made:
        share = shares.pop(claim.better, None)  # told once
        found = claim.found
        change = f"{found.before:.2f} → {found.after:.2f}"
        table.add_row(claim.better, claim.than, change, found.shown, "" if share is None else f"{share:.0%}")
    return table


def _teacher_rows(results: RunResults) -> list[MainRow]:
    scores = results.baseline.measures["teacher"]
    searches = [name for name in (beam_among(scores), "greedy") if name in scores]
    return [
        MainRow(
            f"AR teacher ({name.replace('_', ' ')})",
            scores[name]["bleu"],
            ms=_ms(results.latency, name),
            speed_up=_speed_up(results.latency, name),
        )
        for name in searches
    ]


def _decoder_rows(results: RunResults, stage: Stage, name: str, note: str) -> list[MainRow]:
    decoders = {"argmax": name + note, "dedup": f"{name} + post-de-duplication", "odd": f"{name} + ODD"}
    return [_student_row(results, stage, decoder, text) for decoder, text in decoders.items()]


def _student_row(results: RunResults, stage: Stage, decoder: str, name: str) -> MainRow:
    rescored = f"{decoder}_{results.run.config.decode.length_candidates}"
    bleu = stage.row()["bleu"]
    latency = results.latency_of_larger if stage is results.larger else results.latency
    times = [_ms(latency, way) for way in (decoder, rescored)]
    speed_ups = [_speed_up(latency, way) for way in (decoder, rescored)]
    return MainRow(name, bleu[decoder], bleu.get(rescored), *times, *speed_ups)


def _speed_up(latency: dict[str, dict[str, Any]], decoder: str) -> float | None:
    ms, teacher_ms = _ms(latency, decoder), _ms(latency, beam_among(latency))
    return teacher_ms / ms if teacher_ms and ms else None


def _ms(latency: dict[str, dict[str, Any]], decoder: str) -> float | None:
    return latency[decoder]["ms"] if decoder in latency else None


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    return "" if value is None else f"{value:.{digits}f}{unit}"
