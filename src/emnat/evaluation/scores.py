"""Scores of translations, through sacrebleu; each carries the signature that says how it was computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from emnat.data import EvaluationSet
from emnat.data.store import Ints
from emnat.text import TextPipeline
from emnat.text.concat import remove_concat
from emnat.text.subwords import CONCAT


def score_outputs(
    outputs: Mapping[str, Sequence[Sequence[int]]], references: EvaluationSet, pipeline: TextPipeline, lowercase: bool
) -> dict[str, dict[str, Any]]:
    """All scores of several sets of outputs: tokenised and de-tokenised BLEU, chrF, length ratio, repeats, accuracy.

    What the metrics count in the references, which is half of their work, they count once.
    """
    bleu = BLEU(tokenize="none", lowercase=lowercase, force=True, references=[references.processed_references])
    raw_bleu = BLEU(lowercase=lowercase, references=[references.references])
    chrf = CHRF(lowercase=lowercase, references=[references.references])

    def score(ids: Sequence[Sequence[int]]) -> dict[str, Any]:
        tokenised = [pipeline.decode_target(line) for line in ids]
        raw = [pipeline.detokenise(line) for line in tokenised]
        return {
            "bleu": bleu.corpus_score(tokenised, None).score,
            "signature": str(bleu.get_signature()),
            "bleu_detokenised": raw_bleu.corpus_score(raw, None).score,
            "signature_detokenised": str(raw_bleu.get_signature()),
            "chrf": chrf.corpus_score(raw, None).score,
            "length_ratio": length_ratio(tokenised, references.processed_references),
            "repeat_rate": repeat_rate(ids),
            "accuracy": accuracy(ids, references.target_ids),
        }

    return {name: score(ids) for name, ids in outputs.items()}


def tokenised_bleu(outputs: Sequence[str], references: Sequence[str], lowercase: bool) -> float:
    """BLEU of text that is tokenised already, as the papers of this field report it."""
    metric = BLEU(tokenize="none", lowercase=lowercase, force=True)
    score: float = metric.corpus_score(list(outputs), [list(references)]).score
    return score


def length_ratio(outputs: Sequence[str], references: Sequence[str]) -> float:
    return sum(len(line.split()) for line in outputs) / max(1, sum(len(line.split()) for line in references))


def repeat_rate(outputs: Sequence[Sequence[int]]) -> float:
    """The share of tokens that equal the one before, <concat> not counted as separating anything."""
    lines = [np.asarray(remove_concat(ids, CONCAT)) for ids in outputs]
    repeats = sum(int((line[1:] == line[:-1]).sum()) for line in lines)
    return repeats / max(1, sum(len(line) for line in lines))


def accuracy(outputs: Sequence[Sequence[int]], references: Sequence[Ints]) -> float:
    """The share of sentences that equal their reference in every token."""
    right = sum(np.array_equal(output, reference) for output, reference in zip(outputs, references, strict=True))
    return right / max(1, len(outputs))
