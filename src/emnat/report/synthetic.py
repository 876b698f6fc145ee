"""The paper's Table 2: how many sentences of a synthetic corpus AR and NAR models get right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from emnat.artifacts import check_artifact, read_facts, read_manifest
from emnat.errors import UserError
from emnat.report.collect import seconds_of
from emnat.workspace import Run


def is_synthetic(run: Run) -> bool:
    return run.artifact("contrast").exists()


def collect_accuracy(run: Run) -> dict[str, Any]:
    """What `emnat synthetic` has found, with all that it takes to find it again."""
    folder = run.artifact("contrast/accuracy")
    if not folder.exists():
        raise UserError(f"{run.directory}: nothing has been measured yet: continue with 'emnat synthetic'.")
    check_artifact(folder)
    facts = read_facts(folder)
    if "experiment" not in facts:  # it did not note that, nor the machine, before `report` knew of it
        raise UserError(f"{folder}: made by an older emnat: delete it and run 'emnat synthetic' again to measure anew.")
    return {
        "experiment": facts["experiment"],
        "accuracy": {name: facts[name] for name in ("AR", "NAR")},
        "hardware": facts["hardware"],
        "seed": run.config.seed,
        "seconds": seconds_of(run),
        "versions": {"emnat": read_manifest(folder).emnat, "torch": facts["torch"]},
        "config": run.config.model_dump(exclude_none=True),
    }


def print_accuracy(found: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table("experiment", "seed", "AR", "NAR", title="Whole sentences right")
    for each in found:
        shares = (f"{100 * each['accuracy'][name]:.1f} %" for name in ("AR", "NAR"))
        table.add_row(each["experiment"], str(each["seed"]), *shares)
    console.print(table)
