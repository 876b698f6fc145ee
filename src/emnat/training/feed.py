"""Batches, one after another without end; for a GPU, prepared ahead of it by another thread, in pinned memory."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from emnat.data import Batch, collate, plan_epoch
from emnat.data.store import Ints, lengths_of

_AHEAD = 16  # batches


@dataclass(frozen=True)
class Examples:
    """What to learn from: source i goes with target i."""

    sources: Sequence[Ints]
    targets: Sequence[Ints]


@dataclass(frozen=True)
class Fed:
    """A batch, and where its epoch stands once it has been used."""

    batch: Batch
    epoch: int
    batches_so_far: int


@contextlib.contextmanager
def feed(
    examples: Examples, tokens: int, seed: int, epoch: int, first_batch: int, device: torch.device
) -> Iterator[Iterator[Fed]]:
    """The batches from batch `first_batch` of `epoch` on."""
    batches = _endless(examples, tokens, seed, epoch, first_batch)
    if device.type != "cuda":
        yield batches
        return
    ahead = _Ahead(batches)
    try:
        yield ahead
    finally:
        ahead.stop()


def _endless(examples: Examples, tokens: int, seed: int, epoch: int, first_batch: int) -> Iterator[Fed]:
    source_lengths, target_lengths = lengths_of(examples.sources), lengths_of(examples.targets)
    while True:
        plan = plan_epoch(source_lengths, target_lengths, tokens, seed, epoch)
        for number, planned in enumerate(plan[first_batch:], first_batch + 1):
            yield Fed(collate(examples.sources, examples.targets, planned), epoch, number)
        epoch, first_batch = epoch + 1, 0


class _Ahead(Iterator[Fed]):
    """Takes batches from an iterator in a thread of its own. An error there is raised here."""

    def __init__(self, batches: Iterator[Fed]) -> None:
        self._queue: queue.Queue[Fed | BaseException] = queue.Queue(_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(batches,), name="batches", daemon=True)
        self._thread.start()

    def __next__(self) -> Fed:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:  # make room, so that the thread sees that it is to stop
                self._queue.get_nowait()
        self._thread.join()

    def _work(self, batches: Iterator[Fed]) -> None:
        try:
            for fed in batches:
                if self._stopped.is_set():
                    return
                self._queue.put(Fed(fed.batch.pinned(), fed.epoch, fed.batches_so_far))
        except BaseException as error:
            self._queue.put(error)
