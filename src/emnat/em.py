"""Algorithm 1 of the paper: Expectation-Maximization over an AR teacher φ and a NAR student θ.

READ FIRST. Every line calls a step (steps.py); a step that an earlier process finished returns at once, so running the
algorithm again continues it. Nothing here knows how a step works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from emnat import steps
from emnat.config import EM
from emnat.steps import Targets, Trained
from emnat.workspace import Run

Branch = Literal["free", "bounded"]
Move = Literal["go on", "restart with bounds", "stop"]


@dataclass(frozen=True)
class Iteration:
    """What iteration t of a branch has made: φ^t learned `targets`, θ^t learned `distilled`."""

    t: int
    branch: Branch
    targets: Targets
    teacher: Trained
    distilled: Targets
    student: Trained
    score: float  # of θ^t on the validation set

    @property
    def stage(self) -> str:
        return stage_name(self.branch, self.t)


def run_em(run: Run) -> Iteration:
    """Train φ^1 on the ground truth, alternate M- and E-steps until validation stops improving; the best iteration."""
    em = run.config.em
    corpus = steps.prepare(run)
    t, bounds = 1, None
    branch: Branch = "free"
    targets = corpus.truth
    referee = teacher = steps.train_teacher(run, corpus, stage_name(branch, t), targets, start=None)
    student = None
    history: list[Iteration] = []

    while True:
        stage = stage_name(branch, t)

        # M-step: the student learns what the teacher writes (or, not amortised, what was selected).
        distilled = steps.distill(run, corpus, stage, teacher) if em.amortised or t == 1 else targets
        student = steps.train_student(run, corpus, stage, distilled, start=student)
        score = steps.measure(run, corpus, stage, teacher, student, referee, distilled)
        history.append(Iteration(t, branch, targets, teacher, distilled, student, score))

        move = next_move([(past.t, past.branch, past.score) for past in history], em)
        if move == "stop":
            break
        here = history[-1]
        if move == "restart with bounds":
            here = best_of(history)
            branch = "bounded"

        # E-step: the teacher learns the candidates that the student finds likely (and the referee good enough).
        candidates = steps.propose(run, corpus, here.stage, here.teacher, here.student, here.targets)
        if branch == "bounded" or em.rule == "posterior":
            candidates = steps.judge(run, corpus, here.stage, candidates, here.targets, here.teacher, referee)
        if move == "restart with bounds":
            bounds = candidates
        t, stage = here.t + 1, stage_name(branch, here.t + 1)
        targets = steps.select(run, corpus, stage, candidates, here.targets, bounds)
        teacher = steps.train_teacher(run, corpus, stage, targets, start=here.teacher)
        student = here.student

    best = best_of(history)
    steps.publish(run, corpus, "model", best.teacher, best.student, referee)
    if run.config.larger_student is not None:
        larger = steps.train_student(run, corpus, "larger", best.distilled, best.student, run.config.larger_student)
        steps.measure(run, corpus, "larger", None, larger, referee, best.distilled)
        steps.publish(run, corpus, "larger/model", best.teacher, larger, referee)
    return best


def next_move(history: Sequence[tuple[int, str, float]], em: EM) -> Move:
    """From (t, branch, validation score) of every iteration so far.

    The first iteration of the free branch that is no new best (or its prescribed end) sends the run back to the best,
    to continue with quality bounds; then, or without bounds, `patience` iterations in a row without a new best end it.
    """
    t, branch, _ = history[-1]
    scores = [score for _, _, score in history]
    best = scores.index(max(scores))
    stale = len(scores) - 1 - best
    free_branch_ends = t == em.free_iterations and t < em.iterations
    if branch == "free" and em.bounds and (stale or free_branch_ends):
        return "restart with bounds"
    stale_in_branch = sum(1 for _, past_branch, _ in history[best + 1 :] if past_branch == branch)
    if t >= em.iterations or stale_in_branch >= em.patience:
        return "stop"
    return "go on"


def best_of(history: Sequence[Iteration]) -> Iteration:
    return max(history, key=lambda iteration: iteration.score)


def stage_name(branch: str, t: int) -> str:
    """The folder of an iteration in the run directory."""
    return f"{branch}-{t}"
