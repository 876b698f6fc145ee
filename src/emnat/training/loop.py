"""One loop for every model, top to bottom: batches, gradients, a step; now and then validate and save.

All randomness of a step (dropout) is seeded by its number, so a training that was interrupted goes on as if it had not
been.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from emnat import interrupt, world
from emnat.config import Training
from emnat.data import Batch
from emnat.errors import UserError
from emnat.models import AnyModel
from emnat.progress import Work, log
from emnat.training import checkpoints
from emnat.training.checkpoints import Progress
from emnat.training.feed import Examples, feed
from emnat.training.optimiser import learning_rate, make_optimiser
from emnat.training.updates import Updates

_LOG_EVERY, _LOG_AFTER = 50, 10.0  # steps, seconds; reading the loss makes a GPU wait, so not at every one
_SAVE_EVERY = 300.0  # seconds, if no validation comes before


def train(
    model: AnyModel,
    examples: Examples,
    validate: Callable[[], float],
    settings: Training,
    *,
    seed: int,
    device: torch.device,
    precision: str,
    folder: Path,
    name: str,
    scalars: Path,
) -> dict[str, Any]:
    """Train `model` in place, to the best weights found; `validate` scores it as it is (higher is better).

    `folder` holds the state while training; a later call with the same arguments goes on from there.
    """
    optimiser = make_optimiser(model, settings)
    progress = checkpoints.load_state(folder, model, optimiser)
    updates = Updates(model, optimiser, settings, device, precision)
    with (
        feed(examples, settings.tokens, seed, progress.epoch, progress.batch, device) as fed,
        Work(f"training {name}", settings.steps, progress.step) as work,
        SummaryWriter(str(scalars), purge_step=progress.step) as writer,
    ):
        meter, saved = _Meter(writer, work), time.monotonic()
        while True:
            if _validation_is_due(progress, settings):
                checkpoints.save_state(folder, model, optimiser, progress)  # validating takes long, and can be stopped
                score = _validate_and_save(model, optimiser, progress, validate, settings, folder)
                writer.add_scalar("validation", score, progress.step)
                meter.restart()
                saved = time.monotonic()
            if progress.step >= settings.steps or _out_of_patience(progress, settings):
                break
            taken = list(islice(fed, settings.accumulate))
            progress.step += 1
            progress.epoch, progress.batch = taken[-1].epoch, taken[-1].batches_so_far
            torch.manual_seed(world.derive_seed("dropout", seed, progress.step))
            rate = learning_rate(progress.step, settings)
            batches = [each.batch for each in taken]
            meter.add(updates.make(batches, rate), batches)
            saving = interrupt.asked() or time.monotonic() - saved > _SAVE_EVERY
            if meter.is_due(progress.step) or _validation_is_due(progress, settings) or saving:
                meter.report(progress, rate)
            if saving:
                checkpoints.save_state(folder, model, optimiser, progress)
                saved = time.monotonic()
                interrupt.stop_if_asked()
    return _finish(model, validate, progress, settings, folder) | {"target tokens per second": meter.sustained_speed()}


def _validation_is_due(progress: Progress, settings: Training) -> bool:
    """Also of a training that was stopped between a step and its validation."""
    at_one = progress.step % settings.validate_every == 0 or progress.step == settings.steps
    return progress.step > 0 and at_one and all(step != progress.step for step, _ in progress.scores)


def _out_of_patience(progress: Progress, settings: Training) -> bool:
    return bool(settings.patience and progress.scores) and progress.validations_since_best() >= settings.patience


def _validate_and_save(
    model: AnyModel,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    validate: Callable[[], float],
    settings: Training,
    folder: Path,
) -> float:
    model.eval()
    with torch.compiler.set_stance("force_eager"):  # what is compiled is compiled for training
        score = validate()
    if not math.isfinite(score) or not all(bool(weights.isfinite().all()) for weights in model.parameters()):
        raise _diverged(progress.step)
    progress.scores.append((progress.step, score))
    measure = {"bleu": "BLEU", "accuracy": "accuracy", "loss": "log p a token"}[settings.validate_by]
    log.info("  step %d: validation %s %.4f", progress.step, measure, score)
    checkpoints.save_weights(checkpoints.snapshot_path(folder, progress.step), model)
    if progress.best_step == progress.step:
        checkpoints.save_weights(folder / checkpoints.BEST, model)
    checkpoints.save_state(folder, model, optimiser, progress)
    for step, _ in progress.scores[: -settings.average]:
        checkpoints.snapshot_path(folder, step).unlink(missing_ok=True)
    return score


def _finish(
    model: AnyModel, validate: Callable[[], float], progress: Progress, settings: Training, folder: Path
) -> dict[str, Any]:
    """Leave the better of the best single checkpoint and the average of the last ones in the model.

    After linear decay, leave the last: a checkpoint from before the end still had a learning rate to lose, and one that
    scores better on some validation sentences does so by chance (its lengths are off by up to 4%: docs/log.md).
    """
    facts = {"steps": progress.step, "epochs": progress.epoch, "scores": progress.scores}
    if settings.decay == "linear" and progress.step == settings.steps:
        return facts | {"chosen": "last"}
    best_score = max(score for _, score in progress.scores)
    last = [checkpoints.snapshot_path(folder, step) for step, _ in progress.scores[-settings.average :]]
    model.load_state_dict(checkpoints.average(last))
    model.eval()
    with torch.compiler.set_stance("force_eager"):
        average_score = validate() if len(last) > 1 else -math.inf
    if average_score < best_score:
        model.load_state_dict(checkpoints.load_weights(folder / checkpoints.BEST))
    return facts | {
        "best_step": progress.best_step,
        "best_score": best_score,
        "average_score": average_score if len(last) > 1 else None,
        "chosen": "average" if average_score >= best_score else "best",
    }


def _diverged(step: int) -> UserError:
    return UserError(f"the loss is not a number at step {step}: start another run with a lower learning_rate.")


class _Meter:
    """Loss and speed since the last report."""

    def __init__(self, writer: SummaryWriter, work: Work) -> None:
        self._writer, self._work = writer, work
        self._sustained = [0.0, 0.0]  # tokens and seconds since the second epoch: by then all is compiled and captured
        self.restart()

    def restart(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._tokens, self._since = 0, time.monotonic()

    def is_due(self, step: int) -> bool:
        return step % _LOG_EVERY == 0 or time.monotonic() - self._since > _LOG_AFTER

    def sustained_speed(self) -> float | None:
        tokens, seconds = self._sustained
        return tokens / seconds if seconds else None

    def add(self, loss: torch.Tensor, batches: list[Batch]) -> None:
        self._losses.append(loss)
        self._tokens += sum(int(batch.target_lengths_B.sum()) for batch in batches)

    def report(self, progress: Progress, rate: float) -> None:
        step = progress.step
        loss = float(torch.stack(self._losses).mean())
        seconds = time.monotonic() - self._since
        speed = self._tokens / seconds
        if progress.epoch:
            self._sustained = [self._sustained[0] + self._tokens, self._sustained[1] + seconds]
        if not np.isfinite(loss):
            raise _diverged(step)
        self._writer.add_scalar("loss", loss, step)
        self._writer.add_scalar("learning rate", rate, step)
        self._writer.add_scalar("target tokens per second", speed, step)
        self._work.advance(len(self._losses), f"loss {loss:.3f}, {speed:,.0f} target tokens/s")
        self.restart()
