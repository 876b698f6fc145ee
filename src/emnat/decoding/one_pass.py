"""A student's translation: lengths, one pass, a decoder, and (with several lengths) a choice among the results.

Shapes: B sources, C length candidates of each, N = B·C, T positions, V labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from emnat.config import NarDecoder
from emnat.decoding.beam import length_penalty
from emnat.decoding.lengths import length_candidates
from emnat.decoding.odd import odd_decode
from emnat.decoding.repeats import argmax_decode, collapse_repeats
from emnat.models import NAT, Teacher


@torch.inference_mode()
def decode_in_one_pass(
    student: NAT,
    source_BS: Tensor,
    source_lengths_B: Tensor,
    decoder: NarDecoder,
    candidates: int,
    referee: Teacher | None,
    alpha: float,
    exact_lengths_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) and lengths (B,). Among several candidates the referee decides, or the student without one."""
    memory = student.encode(source_BS, source_lengths_B)
    length_log_probs_BL = student.length_log_probs(memory)
    if exact_lengths_B is not None:
        lengths_BC = exact_lengths_B[:, None]
    else:
        lengths_BC = length_candidates(length_log_probs_BL, candidates)
    tokens_NT, lengths_N, scores_N = _decode(student.propose(memory, lengths_BC), lengths_BC.flatten(), decoder)
    if lengths_BC.shape[1] == 1:
        return tokens_NT, lengths_N
    if referee is not None:
        scores_N = referee.log_prob(source_BS, source_lengths_B, tokens_NT, lengths_N)
        lengths_with_end_N = lengths_N + 1
    else:
        scores_N = scores_N + length_log_probs_BL.gather(1, lengths_BC - 1).flatten()
        lengths_with_end_N = lengths_N
    normalised_BC = (scores_N / length_penalty(lengths_with_end_N, alpha)).view_as(lengths_BC)
    first_row_B = torch.arange(len(lengths_BC), device=lengths_BC.device) * lengths_BC.shape[1]
    best_N = first_row_B + normalised_BC.argmax(dim=1)
    return tokens_NT[best_N], lengths_N[best_N]


def _decode(log_probs_NTV: Tensor, lengths_N: Tensor, decoder: NarDecoder) -> tuple[Tensor, Tensor, Tensor]:
    if decoder == "odd":
        tokens_NT, scores_N = odd_decode(log_probs_NTV, lengths_N)
        return tokens_NT, lengths_N, scores_N
    tokens_NT, scores_N = argmax_decode(log_probs_NTV, lengths_N)
    if decoder == "dedup":
        tokens_NT, lengths_N = collapse_repeats(tokens_NT, lengths_N)
    return tokens_NT, lengths_N, scores_N
