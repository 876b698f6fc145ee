"""Log-probabilities of given pairs, and the corpus-level multi-modality made of them (Eq. 3 and 4 of the paper)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from emnat import world
from emnat.data import collate, plan_decoding
from emnat.data.store import Ints
from emnat.decoding import Translator
from emnat.progress import Work, log

Floats = npt.NDArray[np.floating]


@torch.inference_mode()
def log_probs_of_pairs(
    scorer: Translator, sources: Sequence[Ints], targets: Sequence[Ints], lengths: Ints, name: str
) -> Floats:
    """log p(y|x) for every pair, in order; -inf for a pair with an empty side. `lengths`: of the longer side."""
    result = np.full(len(sources), -np.inf)
    present = np.flatnonzero([len(s) and len(t) for s, t in zip(sources, targets, strict=True)])
    with Work(name, len(present)) as work:
        for rows in plan_decoding(lengths[present], scorer.settings.tokens):
            indices = present[rows]
            batch = collate(sources, targets, indices).to(scorer.device)
            with world.autocast(scorer.device, scorer.precision):
                log_probs_B = scorer.model.log_prob(
                    batch.source_BS, batch.source_lengths_B, batch.target_BT, batch.target_lengths_B
                )
            result[indices] = log_probs_B.double().cpu().numpy()
            work.advance(len(indices))
    return result


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
        lengths = np.array([max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)])
        yield from log_probs_of_pairs(scorer, sources, targets, lengths, "scoring").tolist()


def multimodality(log_probs: Floats, target_lengths: Ints) -> tuple[float, float]:
    """CM (nats a sentence) and NCM (nats a token) of a student's training set under the student itself."""
    cm = float(-np.mean(log_probs))
    return cm, cm / float(np.mean(target_lengths))
