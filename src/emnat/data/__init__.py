"""Ids → batches: a memory-mapped store, token-budget buckets, and the corpora the project makes itself."""

from emnat.data.batches import Batch, Planned, collate, collate_sources, plan_decoding, plan_epoch
from emnat.data.prepare import EvaluationSet, load_evaluation_set, prepare_corpus, reported_set
from emnat.data.store import Sequences, SequenceWriter, concatenate

__all__ = [
    "Batch",
    "EvaluationSet",
    "Planned",
    "SequenceWriter",
    "Sequences",
    "collate",
    "collate_sources",
    "concatenate",
    "load_evaluation_set",
    "plan_decoding",
    "plan_epoch",
    "prepare_corpus",
    "reported_set",
]
