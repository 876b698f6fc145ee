"""Batches by token budget, in length buckets.

A plan is a pure function of lengths, budget, seed and epoch, so training can continue at any batch of any epoch.
Shapes: B sentences, S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emnat.data.store import Ints
from emnat.text.subwords import PAD
from emnat.world import derive_seed

_BUCKET = 4  # lengths that differ by less share a bucket: little padding, few shapes


@dataclass(frozen=True)
class Batch:
    source_BS: Tensor
    source_lengths_B: Tensor
    target_BT: Tensor
    target_lengths_B: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.source_BS.to(device, non_blocking=True),
            self.source_lengths_B.to(device, non_blocking=True),
            self.target_BT.to(device, non_blocking=True),
            self.target_lengths_B.to(device, non_blocking=True),
        )


def plan_epoch(lengths: Ints, tokens: int, seed: int, epoch: int) -> list[Ints]:
    """Index arrays of all batches of one epoch, each with at most `tokens` padded tokens (or one sentence)."""
    random = np.random.default_rng(derive_seed("batches", seed, epoch))
    buckets = -(-np.maximum(lengths, 1) // _BUCKET)
    order = np.lexsort((random.random(len(lengths)), buckets))
    bounds = np.flatnonzero(np.diff(buckets[order])) + 1
    batches: list[Ints] = []
    for members in np.split(order, bounds):
        rows = max(1, tokens // (int(buckets[members[0]]) * _BUCKET)) if len(members) else 1
        batches += [members[start : start + rows] for start in range(0, len(members), rows)]
    return [batches[i] for i in random.permutation(len(batches))]


def plan_decoding(lengths: Ints, tokens: int) -> list[Ints]:
    """Index arrays that cover all sentences, longest first, so that the largest batch comes first."""
    order = np.argsort(-lengths, kind="stable")
    batches: list[Ints] = []
    start = 0
    while start < len(order):
        rows = max(1, tokens // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def collate(sources: Sequence[Ints], targets: Sequence[Ints], indices: Ints) -> Batch:
    source_BS, source_lengths_B = _pad([sources[i] for i in indices])
    target_BT, target_lengths_B = _pad([targets[i] for i in indices])
    return Batch(source_BS, source_lengths_B, target_BT, target_lengths_B)


def collate_sources(sources: Sequence[Ints | Sequence[int]], indices: Ints) -> tuple[Tensor, Tensor]:
    return _pad([sources[i] for i in indices])


def _pad(sequences: Sequence[Ints | Sequence[int]]) -> tuple[Tensor, Tensor]:
    lengths_B = np.array([len(sequence) for sequence in sequences], np.int64)
    padded_BL = np.full((len(sequences), max(1, int(lengths_B.max(initial=0)))), PAD, np.int64)
    for row, sequence in zip(padded_BL, sequences, strict=True):
        row[: len(sequence)] = sequence
    return torch.from_numpy(padded_BL), torch.from_numpy(lengths_B)
