"""The standard set of numbers about a teacher or a student on one set of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from emnat.config import NarDecoder
from emnat.data import EvaluationSet
from emnat.data.store import Ints
from emnat.decoding import Translator
from emnat.decoding.exported import ExportedStudent
from emnat.evaluation.latency import Translate, batch_1_latency
from emnat.evaluation.likelihood import log_probs_of_pairs
from emnat.evaluation.scores import accuracy, score_outputs, tokenised_bleu
from emnat.models import Teacher

DECODERS: tuple[NarDecoder, ...] = ("argmax", "dedup", "odd")
Outputs = dict[str, list[list[int]]]
Rows = dict[str, dict[str, Any]]


def decoder_name(decoder: str, length_candidates: int) -> str:
    """`odd`, or `odd_9` with nine length candidates rescored."""
    return decoder if length_candidates == 1 else f"{decoder}_{length_candidates}"


def measure_student(translator: Translator, sentences: EvaluationSet, lowercase: bool) -> tuple[Rows, Outputs]:
    """Scores and outputs of every decoder, single-pass and with length candidates (rescored if there is a referee)."""
    outputs: Outputs = {
        decoder_name(decoder, candidates): translator.translate_ids(
            sentences.source_ids, decoder=decoder, length_candidates=candidates
        )
        for candidates in _numbers_of_lengths(translator)
        for decoder in DECODERS
    }
    return score_outputs(outputs, sentences, translator.pipeline, lowercase), outputs


def _numbers_of_lengths(translator: Translator) -> list[int]:
    """One, and as many as the settings say; without a referee, an exported student cannot choose among several."""
    alone = isinstance(translator.model, ExportedStudent) and translator.referee is None
    return sorted({1, 1 if alone else translator.settings.length_candidates})


def measure_teacher(translator: Translator, sentences: EvaluationSet, lowercase: bool) -> tuple[Rows, Outputs]:
    outputs: Outputs = {
        name: translator.translate_ids(sentences.source_ids, beam=beam) for name, beam in _searches(translator).items()
    }
    return score_outputs(outputs, sentences, translator.pipeline, lowercase), outputs


def _searches(translator: Translator) -> dict[str, int]:
    """Beams by name. One of 1, where the settings say so, is the greedy one."""
    beam = translator.settings.beam
    return {f"beam_{beam}": beam} if beam == 1 else {"greedy": 1, f"beam_{beam}": beam}


def measure_latency(translators: Sequence[Translator], sources: Sequence[Ints], count: int, runs: int) -> Rows:
    """Milliseconds a sentence of every decoder of these models, on the first `count` sources that are not empty."""
    sources = [ids for ids in sources if len(ids)][:count]
    if not sources:
        return {}
    ways = {name: way for translator in translators for name, way in _ways_to_translate(translator).items()}
    return batch_1_latency(ways, sources, runs, translators[0].device)


def _ways_to_translate(translator: Translator) -> dict[str, Translate]:
    translate = translator.translate_ids
    if isinstance(translator.model, Teacher):
        return {name: partial(translate, beam=beam) for name, beam in _searches(translator).items()}
    return {
        decoder_name(decoder, count): partial(translate, decoder=decoder, length_candidates=count)
        for count in _numbers_of_lengths(translator)
        for decoder in DECODERS
    }


def validation_score(
    translator: Translator,
    sentences: EvaluationSet,
    count: int,
    by: Literal["bleu", "accuracy", "loss"],
    lowercase: bool,
) -> float:
    """How good a model is, higher is better: greedy or single-pass output, or minus the loss per token."""
    count = min(count, len(sentences.sources))
    sources, targets = ([ids[i] for i in range(count)] for ids in (sentences.source_ids, sentences.target_ids))
    if by == "loss":
        log_probs = log_probs_of_pairs(translator, sources, targets, "validating")
        log_probs = np.nan_to_num(log_probs, nan=-np.inf)  # a broken model must not look like a good one
        scored = [i for i in range(count) if len(sources[i]) and len(targets[i])]
        return float(log_probs[scored].sum() / max(1, sum(len(targets[i]) for i in scored)))
    outputs = translator.translate_ids(sources, beam=1)
    if by == "accuracy":
        return accuracy(outputs, targets)
    texts = [translator.pipeline.decode_target(ids) for ids in outputs]
    return tokenised_bleu(texts, sentences.processed_references[:count], lowercase)
