"""Outputs drawn from a teacher's own distribution, token by token: candidates of another kind than beam search's.

Shapes as in beam.py. Draws come from PyTorch's global generator, so what a sentence gets depends on its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from emnat.decoding.beam import Hypotheses, Steps, cache_size
from emnat.text.subwords import BOS, EOS, PAD

_LOOK = 4  # steps between looks at whether all have ended: looking waits for the device


@torch.inference_mode()
def sample(model: Steps, source_BS: Tensor, source_lengths_B: Tensor, limits_B: Tensor, count: int) -> Hypotheses:
    """`count` outputs of each sentence, drawn independently (so they may be equal); scores are log-probabilities.

    An output has at least one token, and one that reaches its limit ends there, its end counted in its score.
    """
    model.begin(source_BS, source_lengths_B)
    limits_N, size = limits_B.repeat_interleave(count), int(limits_B.max())
    rows = len(limits_N)
    tokens_NT = limits_N.new_full((rows, size), PAD)
    lengths_N, last_N = torch.zeros_like(limits_N), torch.full_like(limits_N, BOS)
    log_probs_N = torch.zeros(rows, device=limits_N.device)
    ended_N = torch.zeros_like(limits_N, dtype=torch.bool)
    for length in range(size + 1):
        log_probs_NV = model.step(last_N, cache_size(length))
        allowed_NV = log_probs_NV.clone()
        if length == 0:
            allowed_NV[:, EOS] = -torch.inf
        drawn_N = torch.multinomial(allowed_NV.exp(), 1)[:, 0]
        last_N = torch.where(limits_N == length, EOS, drawn_N)
        log_probs_N += log_probs_NV.gather(1, last_N[:, None])[:, 0].masked_fill(ended_N, 0.0)
        ended_N = ended_N | (last_N == EOS)
        if length < size:
            tokens_NT[:, length] = torch.where(ended_N, PAD, last_N)
        lengths_N += ~ended_N
        if length % _LOOK == _LOOK - 1 and bool(ended_N.all()):
            break
    shape = len(limits_B), count
    scores_MK = log_probs_N.view(shape)
    return Hypotheses(tokens_NT.view(*shape, size), lengths_N.view(shape), scores_MK, scores_MK)
