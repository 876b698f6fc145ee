"""What an EM run can do without: a long run on a large corpus keeps many models and candidate lists nobody reads again.

The best iteration stays whole, since EM may go back to it, the best free one, since it has the bounds of a bounded
branch, and the last two, since the next step starts from them; of the others, manifests and measures are left, which
is all that a continued run and the report look at.
"""

from __future__ import annotations

import re
from pathlib import Path

from emnat.artifacts import empty_artifact, read_facts
from emnat.em import stage_name
from emnat.workspace import Run

_MEASURES = "measures"


def slim_run(run: Run) -> dict[str, int]:
    """Delete the contents of what is not needed again; bytes freed, by artifact."""
    stages = _stages(run.directory)
    measured = [stage for stage in stages if (stage / _MEASURES).exists()]
    scores = {stage: float(read_facts(stage / _MEASURES)["validation"]) for stage in measured}
    unmeasured = [stage for stage in stages if stage not in measured]  # one of them may turn out to be the best
    free = [stage for stage in measured if stage.name.startswith("free")]
    best = [max(some, key=lambda stage: scores[stage]) for some in (measured, free) if some]
    whole = {*stages[-2:], *unmeasured, *best}
    referee = run.artifact(f"{stage_name('free', 1)}/teacher")
    freed = {}
    for stage in (stage for stage in stages if stage not in whole):
        for artifact in sorted(stage.iterdir()):
            if artifact.is_dir() and artifact not in (referee, stage / _MEASURES):
                freed[f"{stage.name}/{artifact.name}"] = empty_artifact(artifact)
    return {name: amount for name, amount in freed.items() if amount}


def _stages(directory: Path) -> list[Path]:
    """The iterations of a run, in the order they were made."""
    found = [path for path in directory.iterdir() if re.fullmatch(r"(free|bounded)-\d+", path.name)]
    return sorted(found, key=lambda path: (path.name.startswith("bounded"), int(path.name.split("-")[1])))
