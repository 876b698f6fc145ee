"""A student's translation: lengths, one pass, a decoder, and (with several lengths) a choice among the results.

Given the output's size, nothing here waits for the device, so that a translation can be captured as one CUDA graph.
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
from emnat.graphs import Beside
from emnat.models import NAT, Teacher


@torch.inference_mode()
def decode_in_one_pass(
    student: NAT,
    source_BS: Tensor,
    source_lengths_B: Tensor,
    exact_lengths_B: Tensor,
    size: int | None,
    decoder: NarDecoder,
    candidates: int,
    referee: Teacher | None,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, size), lengths (B,), and the longest lengths wanted (B,): where `size` is less, a second try is due.

    Without a size, the longest of all is taken; exact lengths other than 0 are prescribed.
    Among several candidates the referee decides, or else the student.
    """
    several, beside = candidates > 1, Beside()
    if several and referee is not None:
        with beside:
            judged = referee.encode(source_BS, source_lengths_B)
    memory = student.encode(source_BS, source_lengths_B)
    length_log_probs_BL = student.length_log_probs(memory)
    exact_B1 = exact_lengths_B[:, None]
    wanted_BC = torch.where(exact_B1 > 0, exact_B1, length_candidates(length_log_probs_BL, candidates))
    if size is None:
        size = int(wanted_BC.max())
    lengths_BC = wanted_BC.clamp_max(size)
    scores_NTV = student.propose(memory, lengths_BC, size)
    if several and referee is None:
        scores_NTV = scores_NTV.log_softmax(-1)
    tokens_NT, lengths_N, scores_N = _decode(scores_NTV, lengths_BC.flatten(), decoder)
    if several:
        if referee is not None:
            beside.wait()
            scores_N = referee.log_prob_given(judged, tokens_NT, lengths_N)
            lengths_with_end_N = lengths_N + 1
        else:
            scores_N = scores_N + length_log_probs_BL.gather(1, lengths_BC - 1).flatten()
            lengths_with_end_N = lengths_N
        normalised_BC = (scores_N / length_penalty(lengths_with_end_N, alpha)).view_as(lengths_BC)
        first_row_B = torch.arange(len(lengths_BC), device=lengths_BC.device) * lengths_BC.shape[1]
        best_B = first_row_B + normalised_BC.argmax(dim=1)
        tokens_NT, lengths_N = tokens_NT[best_B], lengths_N[best_B]
    return tokens_NT, lengths_N, wanted_BC.amax(1)


def _decode(scores_NTV: Tensor, lengths_N: Tensor, decoder: NarDecoder) -> tuple[Tensor, Tensor, Tensor]:
    if decoder == "odd":
        tokens_NT, scores_N = odd_decode(scores_NTV, lengths_N)
        return tokens_NT, lengths_N, scores_N
    tokens_NT, scores_N = argmax_decode(scores_NTV, lengths_N)
    if decoder == "dedup":
        tokens_NT, lengths_N = collapse_repeats(tokens_NT, lengths_N)
    return tokens_NT, lengths_N, scores_N
