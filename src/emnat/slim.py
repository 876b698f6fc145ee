"""What an EM run can do without: a long run on a large corpus keeps many models and candidate lists nobody reads again.

Of the iterations that EM has gone through, the best stays whole, since EM may go back to it, the best free one, since
it has the bounds of a bounded branch, and the last two, since the next step starts from them; of the others, manifests
and measures are left, which is all that a continued run and the report look at. What EM has not gone through under the
settings it has now, or is about to make anew, is left alone.
"""

from __future__ import annotations

from pathlib import Path

from emnat.artifacts import MANIFEST, content_digest, empty_artifact, read_facts, read_manifest
from emnat.em import Branch, next_move, stage_name
from emnat.workspace import Run

_MEASURES = "measures"
_UNFINISHED = (".partial", ".replaced")


def slim_run(run: Run) -> dict[str, int]:
    """Delete the contents of what is not needed again; bytes freed, by artifact."""
    scores = _scores(run)
    stages, free = list(scores), [stage for stage in scores if stage.startswith("free")]
    whole = {*stages[-2:], *(max(some, key=lambda stage: scores[stage]) for some in (stages, free) if some)}
    kept = run.artifact(f"{stage_name('free', 1)}/teacher")  # the referee
    freed = {}
    for stage in (stage for stage in stages if stage not in whole):
        for artifact in _finished(run.artifact(stage)):
            if artifact != kept and artifact.name != _MEASURES:
                freed[f"{stage}/{artifact.name}"] = empty_artifact(artifact)
    return {name: amount for name, amount in freed.items() if amount}


def _scores(run: Run) -> dict[str, float]:
    """The validation score of every iteration that EM has finished, in the order in which it goes through them."""
    past: list[tuple[int, Branch, float]] = []
    t, move = 1, ""
    branch: Branch = "free"
    while move != "stop" and _is_measured_and_current(run, stage := run.artifact(stage_name(branch, t))):
        past.append((t, branch, float(read_facts(stage / _MEASURES)["validation"])))
        move = next_move(past, run.config.em)
        if move == "restart with bounds":
            t, branch = max(past, key=lambda iteration: iteration[2])[0], "bounded"
        t += 1
    return {stage_name(branch, t): score for t, branch, score in past}


def _is_measured_and_current(run: Run, stage: Path) -> bool:
    """Whether EM would find all of an iteration made from what is there now."""
    if not (stage / _MEASURES).exists():
        return False
    for manifest in map(read_manifest, _finished(stage)):
        parents = {name: run.artifact(name) for name in manifest.parents}
        if not all((parent / MANIFEST).exists() for parent in parents.values()):
            return False
        if not manifest.is_made_from({name: content_digest(parent) for name, parent in parents.items()}):
            return False
    return True


def _finished(stage: Path) -> list[Path]:
    found = sorted(path.parent for path in stage.glob(f"*/{MANIFEST}"))
    return [artifact for artifact in found if artifact.suffix not in _UNFINISHED]
