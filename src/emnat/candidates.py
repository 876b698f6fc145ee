"""Candidates of the E-step: k-best lists with what the models think of them, on disk and in batches.

Shapes: B sources of a batch, N sources, K candidates of each (and, where it says K+1, the incumbent after them), T
positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from emnat.data import Sequences, collate_sources
from emnat.data.store import Floats, Ints, write_header
from emnat.decoding import Hypotheses, Translator
from emnat.evaluation import log_probs_of_candidates
from emnat.selection import CandidateScores
from emnat.text.subwords import PAD


@dataclass(frozen=True)
class Quality:
    """What the referee thinks of candidates, by the artifact that holds it; opened where it is needed."""

    artifact: str
    folder: Path

    @property
    def scores(self) -> Floats:
        scores: Floats = load_scores(self.folder)[-1]
        return scores


@dataclass(frozen=True)
class Lists:
    """The teacher's k best outputs (or draws) for every source, by the artifact that holds them."""

    artifact: str
    folder: Path

    @cached_property
    def sequences(self) -> Sequences:
        """N·K of them, those of one source next to each other."""
        return Sequences(self.folder, "candidates")

    @cached_property
    def log_probs(self) -> Floats:
        """The teacher's, (N, K); -inf marks one that was not found, in whose place is a copy of the best."""
        log_probs: Floats = load_scores(self.folder)[0]
        return log_probs

    @property
    def size(self) -> int:
        return int(self.log_probs.shape[1])

    def best(self, rows: Ints) -> tuple[Ints, Ints]:
        """The first of each of some sources, padded, and its length."""
        return self.sequences.padded(rows * self.size, self.sequences.longest(rows * self.size), PAD)

    def of(self, rows: Ints, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens (B, K, T) and lengths (B, K) of some sources."""
        lists = (rows[:, None] * self.size + np.arange(self.size)).flatten()
        tokens_NT, lengths_N = padded(device, self.sequences, lists)
        return tokens_NT.view(len(rows), self.size, -1), lengths_N.view(len(rows), self.size)


@dataclass(frozen=True)
class Candidates:
    """K-best lists with their scores; the last column is the incumbent, the target of the same iteration."""

    artifact: str
    folder: Path
    lists: Lists
    quality: Quality | None = None  # once they have been judged

    @property
    def sequences(self) -> Sequences:
        """N·K of them: the incumbents are in their own artifact."""
        return self.lists.sequences

    @cached_property
    def scores(self) -> CandidateScores:
        student, teacher = load_scores(self.folder)
        return CandidateScores(student, teacher, None if self.quality is None else self.quality.scores)

    def lengths(self, incumbents: Sequences, rows: slice) -> Ints:
        """In tokens, of the candidates of some sources and of the incumbent."""
        lists = range(rows.start * self.incumbent_column, rows.stop * self.incumbent_column)
        lengths_NK = self.sequences.part(lists).lengths.reshape(-1, self.incumbent_column)
        incumbents_N = incumbents.part(range(rows.start, rows.stop)).lengths
        return np.concatenate([lengths_NK, incumbents_N[:, None]], axis=1)

    def in_columns(self, incumbents: Sequences, rows: slice, columns_B: Ints) -> tuple[Ints, Ints]:
        """Of each of some sources the sequence in one column, padded, and its length."""
        sources_B, kept_B = np.arange(rows.start, rows.stop), columns_B == self.incumbent_column
        from_lists = self.sequences, sources_B * self.lists.size + np.where(kept_B, 0, columns_B)
        sides = [from_lists, (incumbents, sources_B)]
        size = max(sequences.longest(which) for sequences, which in sides)
        (listed_BL, listed_B), (old_BL, old_B) = (sequences.padded(which, size, PAD) for sequences, which in sides)
        return np.where(kept_B[:, None], old_BL, listed_BL), np.where(kept_B, old_B, listed_B)

    @property
    def incumbent_column(self) -> int:
        return int(self.scores.teacher.shape[1]) - 1

    @property
    def incumbent_quality(self) -> Floats:
        """Q of the target this iteration was trained on: the bounds of a restart from here."""
        assert self.scores.quality is not None
        quality: Floats = self.scores.quality[:, self.incumbent_column]
        return quality


def are_same(some: tuple[Ints, Ints], others: tuple[Ints, Ints]) -> npt.NDArray[np.bool_]:
    """Which rows hold the same sequence, (B,); padded ids and lengths."""
    (ids_BL, lengths_B), (other_ids_BL, other_lengths_B) = some, others
    size = min(ids_BL.shape[1], other_ids_BL.shape[1])  # sequences of one length fit into both
    same_B: npt.NDArray[np.bool_] = (ids_BL[:, :size] == other_ids_BL[:, :size]).all(axis=1)
    same_B &= lengths_B == other_lengths_B
    return same_B


def join_scores(parts: Sequence[Path], folder: Path, shape: tuple[int, int, int]) -> None:
    """One file of the scores of several parts of the corpus, (scorers, N, K or K+1), not read into memory."""
    with (folder / "scores.npy").open("wb") as joined:
        write_header(joined, np.float32, shape)
        for scorer in range(shape[0]):
            for part in parts:
                joined.write(load_scores(part)[scorer].tobytes())


def load_scores(folder: Path) -> Floats:
    scores: Floats = np.load(folder / "scores.npy", mmap_mode="r", allow_pickle=False)
    return scores


def score(
    student: Translator, teacher: Translator, lists: Lists, incumbents: Sequences, sources: Sequences, rows: Ints
) -> Floats:
    """log p of the k best and the incumbent under student and teacher, (2, B, K+1), for some sources.

    What the teacher's own search has computed is not computed again.
    """
    tokens_BKT, lengths_BK = with_incumbents(*lists.of(rows, student.device), incumbents, rows)
    log_probs = partial(log_probs_of_candidates, sources=padded(student.device, sources, rows))
    judged_BK = log_probs([student], tokens_BKT=tokens_BKT, lengths_BK=lengths_BK)[0]
    incumbents_B1 = log_probs([teacher], tokens_BKT=tokens_BKT[:, -1:], lengths_BK=lengths_BK[:, -1:])[0]
    return np.stack([judged_BK, np.concatenate([lists.log_probs[rows], incumbents_B1], 1)])


def padded(device: torch.device, sequences: Sequences, rows: Ints) -> tuple[Tensor, Tensor]:
    """Some sequences, padded, and their lengths."""
    tokens_BT, lengths_B = collate_sources(sequences, rows)
    return tokens_BT.to(device), lengths_B.to(device)


def unpadded(tokens_BKT: Tensor, lengths_BK: Tensor) -> tuple[Ints, Ints]:
    """The ids of all sequences one after another, and their lengths (B, K)."""
    inside_BKT = torch.arange(tokens_BKT.shape[2], device=tokens_BKT.device) < lengths_BK[:, :, None]
    return tokens_BKT[inside_BKT].cpu().numpy(), lengths_BK.cpu().numpy()


def by_source(batches: Sequence[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints]:
    """Ids and lengths of all sequences in the order of their sources, from batches of (sources, ids, lengths).

    All at once, since a GPU waits for it: source by source it takes three times as long.
    """
    sources_N, ids, lengths_NK = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    order_N, counts_N = np.argsort(sources_N), lengths_NK.sum(axis=1)
    starts_N = (np.cumsum(counts_N) - counts_N)[order_N]
    counts_N = counts_N[order_N]
    new_starts_N = np.cumsum(counts_N) - counts_N
    places = np.arange(len(ids)) + np.repeat(starts_N - new_starts_N, counts_N)
    return ids[places], lengths_NK[order_N].flatten()


def complete(found: Hypotheses) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, K, T), lengths and log-probabilities (B, K) of the k best; a missing one is a copy of the best, with
    the log-probability -inf."""
    exists_BK = found.scores_MK.isfinite()
    tokens_BKT = torch.where(exists_BK[..., None], found.tokens_MKT, found.tokens_MKT[:, :1])
    lengths_BK = torch.where(exists_BK, found.lengths_MK, found.lengths_MK[:, :1])
    return tokens_BKT, lengths_BK, found.log_probs_MK.where(exists_BK, -torch.inf)


def with_incumbents(tokens_BKT: Tensor, lengths_BK: Tensor, incumbents: Sequences, rows: Ints) -> tuple[Tensor, Tensor]:
    """Tokens (B, K+1, T) and lengths (B, K+1): the k best, then the incumbent."""
    old_BT, old_lengths_B = padded(tokens_BKT.device, incumbents, rows)
    width = max(tokens_BKT.shape[2], old_BT.shape[1])
    tokens_BKT = F.pad(tokens_BKT, (0, width - tokens_BKT.shape[2]))
    old_B1T = F.pad(old_BT, (0, width - old_BT.shape[1]))[:, None]
    return torch.cat([tokens_BKT, old_B1T], 1), torch.cat([lengths_BK, old_lengths_B[:, None]], 1)
