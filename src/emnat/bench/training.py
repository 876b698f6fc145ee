"""Training speed: our updates against the same model written with `torch.nn.Transformer`, in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emnat import world
from emnat.bench.ours import Task
from emnat.bench.timing import in_turns, time_turn
from emnat.config import Model, Training
from emnat.data import Batch
from emnat.models import Teacher
from emnat.training.optimiser import make_optimiser
from emnat.training.updates import Updates

_STEPS = 10  # updates in one turn: launching runs ahead of the device, as it does in training


class PlainTransformer(nn.Module):
    """The teacher as one would write it with PyTorch's own modules."""

    def __init__(self, settings: Model, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, settings.hidden, padding_idx=0)
        self.positions = nn.Embedding(positions, settings.hidden)
        self.transformer = nn.Transformer(
            settings.hidden,
            settings.heads,
            settings.encoder_layers,
            settings.decoder_layers,
            settings.filter,
            settings.dropout,
            batch_first=True,
            norm_first=True,
        )
        self.output = nn.Linear(settings.hidden, vocabulary, bias=False)
        self.output.weight = self.tokens.weight

    def loss(self, batch: Batch, label_smoothing: float) -> Tensor:
        source_BS, target_BT = batch.source_BS, batch.target_BT
        inputs_BT = F.pad(target_BT[:, :-1], (1, 0), value=1)
        states = self.transformer(
            self._embed(source_BS),
            self._embed(inputs_BT),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs_BT.shape[1], device=source_BS.device),
            src_key_padding_mask=source_BS == 0,
            memory_key_padding_mask=source_BS == 0,
            tgt_is_causal=True,
        )
        logits = self.output(states).flatten(0, 1).float()
        return F.cross_entropy(
            logits, target_BT.flatten(), ignore_index=0, label_smoothing=label_smoothing, reduction="sum"
        )

    def _embed(self, tokens_BT: Tensor) -> Tensor:
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        embedded: Tensor = self.tokens(tokens_BT) + self.positions(positions_T)
        return embedded


def training_speed(task: Task, runs: int) -> list[dict[str, object]]:
    """Target tokens a second of both, in turns, on full batches of `task.batch` sentences."""
    settings, training = task.settings(), Training(steps=100_000)
    torch.manual_seed(0)
    ours = Teacher(settings, task.vocabulary, task.tokens + 1).to(task.device)
    plain = PlainTransformer(settings, task.vocabulary, task.tokens + 1).to(task.device)
    batch = full_batch(task)
    updates = Updates(ours, make_optimiser(ours, training), training, task.device, task.precision)
    functions = [lambda: _repeat(lambda: updates.make([batch], 1e-4)), _eager(plain, batch, training, task)]
    medians = in_turns([partial(time_turn, function, task.device) for function in functions], runs)
    tokens = task.batch * task.tokens * _STEPS
    return [
        {
            "name": f"training, {task.size}",
            "engine": engine,
            "device": task.device.type,
            "precision": "bfloat16" if world.uses_bf16(task.device, task.precision) else "float32",
            "batch": task.batch,
            "target_tokens": task.tokens,
            "ms_median": ms / _STEPS,
            "sentences_per_s": task.batch * _STEPS * 1000 / ms,
            "target_tokens_per_s": tokens * 1000 / ms,
            "speedup_over_eager": medians[1] / ms,
            "speedup_over_ar_beam5": None,
            "runs": runs,
            "hardware": world.describe(task.device),
            "torch": torch.__version__,
        }
        for engine, ms in zip(("emnat", "torch.nn.Transformer, eager"), medians, strict=True)
    ]


def _eager(model: PlainTransformer, batch: Batch, training: Training, task: Task) -> Callable[[], object]:
    optimiser = make_optimiser(model, training)

    def update() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        on_device = batch.to(task.device)
        with world.autocast(task.device, task.precision):
            loss = model.loss(on_device, training.label_smoothing)
        (loss / on_device.target_lengths_B.sum()).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimiser.step()
        return loss.detach()

    return lambda: _repeat(update)


def _repeat(update: Callable[[], object]) -> None:
    for _ in range(_STEPS):
        update()


def full_batch(task: Task) -> Batch:
    shape, lengths = (task.batch, task.tokens), torch.full((task.batch,), task.tokens)
    source, target = (torch.randint(5, task.vocabulary, shape) for _ in range(2))
    batch = Batch(source, lengths, target, lengths)
    return batch.pinned() if task.device.type == "cuda" else batch
