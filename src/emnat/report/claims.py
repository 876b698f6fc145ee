"""What a run claims: every step is better than the one before, and so much of the gap to the teacher is closed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from emnat.evaluation import Comparison, compare_outputs
from emnat.report.collect import RunResults, Stage


@dataclass(frozen=True)
class System:
    """An output of a run: one decoder of one iteration's student."""

    name: str
    stage: Stage
    decoder: str

    @property
    def bleu(self) -> float:
        return float(self.stage.measures["student"][self.decoder]["bleu"])


@dataclass(frozen=True)
class Claim:
    better: str
    than: str
    found: Comparison


def chosen_name(results: RunResults) -> str:
    """Of the chosen student: where the first iteration is the best, there is nothing that EM has added."""
    return "NAT baseline" if (results.final or results.stages[-1]) is results.baseline else "+ EM"


def ladder(results: RunResults) -> list[System]:
    """From the baseline to the best, one step at a time."""
    final, rescored = results.final or results.stages[-1], f"odd_{results.run.config.decode.length_candidates}"
    name, steps = chosen_name(results), [System("NAT baseline", results.baseline, "argmax")]
    if final is not results.baseline:
        steps.append(System(name, final, "argmax"))
    steps += [System(f"{name} + ODD", final, "odd"), System(f"{name} + ODD, rescored", final, rescored)]
    if results.larger:
        steps.append(System(f"{name} + ODD, rescored, larger student", results.larger, rescored))
    return [step for step in steps if step.decoder in step.stage.measures["student"]]


def claims(results: RunResults) -> list[Claim]:
    """Each step of the ladder against the one before, and ODD against post-de-duplication."""
    steps, candidates = ladder(results), results.run.config.decode.length_candidates
    pairs, name = list(pairwise(steps)), chosen_name(results)
    final = results.final or results.stages[-1]
    for suffix, note in (("", ""), (f"_{candidates}", ", rescored")):
        if f"odd{suffix}" in final.measures["student"]:
            dedup = System(f"{name} + post-de-duplication{note}", final, f"dedup{suffix}")
            pairs.append((dedup, System(f"{name} + ODD{note}", final, f"odd{suffix}")))
    references, lowercase = results.test_text()[1], results.run.config.evaluate.lowercase
    found = []
    for before, after in pairs:
        old, new = (results.outputs(system.stage, system.decoder) for system in (before, after))
        found.append(Claim(after.name, before.name, compare_outputs(old, new, references, lowercase)))
    return found


def gap_closed(results: RunResults) -> dict[str, float]:
    """The share of the way from the baseline, in one pass, up to the teacher that each step has come."""
    baseline, *others = ladder(results)
    gap = results.baseline.row()["teacher_bleu"] - baseline.bleu
    return {step.name: (step.bleu - baseline.bleu) / gap for step in others} if gap > 0 else {}


def claims_as_json(results: RunResults, made: list[Claim]) -> dict[str, Any]:
    significance = [{"better": claim.better, "than": claim.than} | asdict(claim.found) for claim in made]
    return {"gap_closed": gap_closed(results), "significance": significance}
