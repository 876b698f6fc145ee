"""Batches by token budget, in few shapes.

A plan is a pure function of lengths, budget, seed and epoch, so training can continue at any batch of any epoch. Sizes
are rounded up to a coarse scale: batches that share a shape share a CUDA graph, and there is little padding yet.
Shapes: B sentences, S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emnat.data.store import Ints, Sequences
from emnat.text.subwords import PAD
from emnat.world import derive_seed


@dataclass(frozen=True)
class Planned:
    """A batch to come: which sentences, padded to which sizes."""

    indices: Ints
    source_size: int
    target_size: int


@dataclass(frozen=True)
class Batch:
    source_BS: Tensor
    source_lengths_B: Tensor
    target_BT: Tensor
    target_lengths_B: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.source_BS.shape, self.target_BT.shape[1])

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As every model's `loss` takes them."""
        return self.source_BS, self.source_lengths_B, self.target_BT, self.target_lengths_B

    def cut(self, pieces: int) -> list[Batch]:
        """The same sentences in up to so many batches."""
        parts = zip(*(tensor.chunk(pieces) for tensor in self.tensors()), strict=True)
        return [Batch(*part) for part in parts]

    def to(self, device: torch.device) -> Batch:
        return Batch(*(part.to(device, non_blocking=True) for part in self.tensors()))

    def pinned(self) -> Batch:
        """In memory that a GPU can fetch from by itself."""
        return Batch(*(part.pin_memory() for part in self.tensors()))


def rounded_up(lengths: Ints) -> Ints:
    """To multiples of 4 up to 32, of 8 up to 64, of 16 up to 128, and so on, but not beyond the longest."""
    lengths = np.maximum(lengths, 1)
    step = np.maximum(4, 2 ** np.ceil(np.log2(lengths)).astype(np.int64) // 8)
    sizes: Ints = np.minimum(-(-lengths // step) * step, lengths.max(initial=1))
    return sizes


def plan_epoch(source_lengths: Ints, target_lengths: Ints, tokens: int, seed: int, epoch: int) -> list[Planned]:
    """All batches of one epoch, each with at most `tokens` padded tokens on its longer side (or one sentence).

    Sentences are sorted into target sizes, and by source size within one. What does not fill a batch waits for the
    next target size, so all batches of a shape have the same number of sentences, but for the last one planned.
    """
    random = np.random.default_rng(derive_seed("batches", seed, epoch))
    source_sizes, target_sizes = rounded_up(source_lengths), rounded_up(target_lengths)
    shuffled = random.permutation(len(source_lengths))
    batches: list[Planned] = []
    waiting: Ints = np.empty(0, np.int64)
    scale = np.unique(target_sizes)
    for size in scale:
        members = np.concatenate([waiting, shuffled[target_sizes[shuffled] == size]])
        members = members[np.argsort(-source_sizes[members], kind="stable")]
        while len(members):
            source_size = int(source_sizes[members[0]])
            rows = max(1, tokens // max(source_size, int(size)))
            if len(members) < rows and size != scale[-1]:
                break
            batches.append(Planned(members[:rows], source_size, int(size)))
            members = members[rows:]
        waiting = members
    return [batches[i] for i in random.permutation(len(batches))]


def plan_decoding(lengths: Ints, sentences_at_once: Callable[[int], int]) -> list[Ints]:
    """Index arrays that cover all sentences, longest first, so that the largest batch comes first.

    `sentences_at_once` says how many of a length (or shorter) make a batch.
    """
    order = np.argsort(-lengths, kind="stable")
    batches: list[Ints] = []
    start = 0
    while start < len(order):
        rows = sentences_at_once(int(lengths[order[start]]))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def collate(sources: Sequence[Ints], targets: Sequence[Ints], planned: Planned) -> Batch:
    return Batch(
        *_pad(sources, planned.indices, planned.source_size), *_pad(targets, planned.indices, planned.target_size)
    )


def collate_sources(sources: Sequence[Ints | Sequence[int]], indices: Ints) -> tuple[Tensor, Tensor]:
    if isinstance(sources, Sequences):
        return _pad(sources, indices, sources.longest(indices))
    return _pad(sources, indices, max((len(sources[i]) for i in indices), default=1))


def _pad(sequences: Sequence[Ints | Sequence[int]], indices: Ints, size: int) -> tuple[Tensor, Tensor]:
    """Ids (B, size), PAD after the end of each, and their lengths (B,)."""
    if isinstance(sequences, Sequences):
        padded_BL, lengths_B = sequences.padded(indices, max(1, size), PAD)
        return torch.from_numpy(padded_BL), torch.from_numpy(lengths_B)
    lengths_B = np.array([len(sequences[i]) for i in indices], np.int64)
    padded_BL = np.full((len(indices), max(1, size)), PAD, np.int64)
    for row, i in zip(padded_BL, indices, strict=True):
        row[: len(sequences[i])] = sequences[i]
    return torch.from_numpy(padded_BL), torch.from_numpy(lengths_B)
