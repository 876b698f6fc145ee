"""Numbers about models: BLEU with its signature, likelihoods, CM/NCM, latency."""

from emnat.evaluation.latency import batch_1_latency, in_rounds
from emnat.evaluation.likelihood import (
    log_probs_of_candidates,
    log_probs_of_lines,
    log_probs_of_pairs,
    multimodality,
    ncm_of_outputs,
)
from emnat.evaluation.measures import (
    DECODERS,
    decoder_name,
    measure_latency,
    measure_student,
    measure_teacher,
    validation_score,
)
from emnat.evaluation.scores import score_outputs
from emnat.evaluation.significance import Comparison, compare_outputs

__all__ = [
    "DECODERS",
    "Comparison",
    "batch_1_latency",
    "compare_outputs",
    "decoder_name",
    "in_rounds",
    "log_probs_of_candidates",
    "log_probs_of_lines",
    "log_probs_of_pairs",
    "measure_latency",
    "measure_student",
    "measure_teacher",
    "multimodality",
    "ncm_of_outputs",
    "score_outputs",
    "validation_score",
]
