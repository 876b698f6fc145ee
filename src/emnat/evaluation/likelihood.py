"""Log-probabilities of given pairs, and the corpus-level multi-modality made of them (Eq. 3 and 4 of the paper)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from emnat import interrupt, world
from emnat.data import Planned, Sequences, collate, plan_decoding
from emnat.data.store import Floats, Ints, lengths_of
from emnat.decoding import Translator
from emnat.decoding.engine import halved_until_it_fits
from emnat.decoding.exported import ExportedStudent
from emnat.progress import Work, log

_PART = 100_000  # sentences scored at once: a million lines take no more memory than these


@torch.inference_mode()
def log_probs_of_pairs(scorer: Translator, sources: Sequence[Ints], targets: Sequence[Ints], name: str) -> Floats:
    """log p(y|x) for every pair, in order; -inf for a pair with an empty side."""
    result = np.full(len(sources), -np.inf)
    source_lengths, target_lengths = lengths_of(sources), lengths_of(targets)

    def score(indices: Ints) -> Floats:
        longest = int(source_lengths[indices].max()), int(target_lengths[indices].max())
        batch = collate(sources, targets, Planned(indices, *longest)).to(scorer.device)
        assert not isinstance(scorer.model, ExportedStudent)  # it has no engine either
        with world.autocast(scorer.device, scorer.precision):
            log_probs: Floats = scorer.model.log_prob(*batch.tensors()).double().cpu().numpy()
        return log_probs

    present = np.flatnonzero((source_lengths > 0) & (target_lengths > 0))
    longer = np.maximum(source_lengths, target_lengths)[present]
    with Work(name, len(present)) as work:
        for rows in plan_decoding(longer, partial(scorer.engine.scored_at_once, rows_each=1)):
            for indices, log_probs in halved_until_it_fits(present[rows], score):
                interrupt.stop_if_asked()
                result[indices] = log_probs
                work.advance(len(indices))
    return result


@torch.inference_mode()
def log_probs_of_candidates(
    scorers: Sequence[Translator],
    sources: tuple[Tensor, Tensor],
    tokens_BKT: Tensor,
    lengths_BK: Tensor,
) -> Floats:
    """log p of every candidate under every model, (models, B, K), for one batch of `sources` (ids and lengths).

    Sources whose candidates are about as long are scored together: of sources as long as each other, some have
    candidates twice as long as others, and most of the work would be on padding.
    """
    sentences, count = lengths_BK.shape
    longest_B = lengths_BK.amax(1).cpu().numpy()
    scores = np.empty((len(scorers), sentences, count), np.float32)

    def score(indices: Ints) -> None:
        rows = torch.from_numpy(indices).to(lengths_BK.device)
        source_BS, source_lengths_B = (part[rows] for part in sources)
        tokens_NT = tokens_BKT[rows, :, : int(longest_B[indices].max())].flatten(0, 1)
        lengths_N = lengths_BK[rows].flatten()
        for column, scorer in zip(scores, scorers, strict=True):
            assert not isinstance(scorer.model, ExportedStudent)
            with world.autocast(scorer.device, scorer.precision):
                log_prob_N = scorer.model.log_prob(source_BS, source_lengths_B, tokens_NT, lengths_N)
            column[indices] = log_prob_N.view(-1, count).cpu().numpy()

    for batch in plan_decoding(longest_B, partial(scorers[0].engine.scored_at_once, rows_each=count)):
        for _ in halved_until_it_fits(batch, score):
            pass
    return scores


def log_probs_of_lines(scorer: Translator, pairs: Iterable[tuple[str, str]], block: int) -> Iterator[float]:
    """log p(target|source) of raw text, block by block; -inf where a side is empty or longer than the model's reach."""
    numbered = enumerate(pairs, 1)
    limit = scorer.model.max_tokens
    while members := list(islice(numbered, block)):
        sources = [np.array(scorer.pipeline.encode_source(source)) for _, (source, _) in members]
        targets = [np.array(scorer.pipeline.encode_target(target)) for _, (_, target) in members]
        for i, (number, _) in enumerate(members):
            longest = max(len(sources[i]), len(targets[i]))
            if longest > limit:
                log.warning("line %d: %d tokens, but the model reads %d: scored -inf.", number, longest, limit)
                targets[i] = targets[i][:0]
        yield from log_probs_of_pairs(scorer, sources, targets, "scoring").tolist()


def multimodality(student: Translator, sources: Sequences, targets: Sequences, name: str) -> tuple[float, float]:
    """CM (nats a sentence) and NCM (nats a token) of a student's training set under the student itself."""
    starts = range(0, len(sources), _PART)
    parts = [range(start, min(start + _PART, len(sources))) for start in starts]
    sums = [_sums(student, sources.part(rows), targets.part(rows), name) for rows in parts]
    return _cm_and_ncm(*map(sum, zip(*sums, strict=True)))


def ncm_of_outputs(student: Translator, sources: Sequence[Ints], outputs: Sequence[list[int]], name: str) -> float:
    """NCM of what somebody wrote for some sources."""
    return _cm_and_ncm(*_sums(student, sources, [np.array(ids, np.int64) for ids in outputs], name))[1]


def _sums(student: Translator, sources: Sequence[Ints], targets: Sequence[Ints], name: str) -> tuple[int, int, float]:
    """Sentences, tokens and log-probability of the pairs that the student can score."""
    log_probs = log_probs_of_pairs(student, sources, targets, name)
    present = np.isfinite(log_probs)
    return int(present.sum()), int(lengths_of(targets)[present].sum()), float(log_probs[present].sum())


def _cm_and_ncm(sentences: int, tokens: int, log_prob: float) -> tuple[float, float]:
    return -log_prob / max(1, sentences), -log_prob / max(1, tokens)
