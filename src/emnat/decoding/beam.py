"""Batched beam search for the k best outputs. It sees step functions and scores, never a model.

Shapes: B sentences still searched (finished ones leave), M sentences asked for, K beams, N = B·K rows, T positions,
V labels. A sentence's result does not depend on its company: limits, pruning and stopping are its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from emnat.text.subwords import BOS, EOS, PAD


class Steps(Protocol):
    """A model under search (see TeacherState)."""

    def step(self, tokens_N: Tensor) -> Tensor: ...

    def select(self, rows_N: Tensor, sentences_B: Tensor | None) -> None: ...


@dataclass(frozen=True)
class Hypotheses:
    """The k best outputs of each sentence, best first; where fewer exist, the score is -inf."""

    tokens_MKT: Tensor
    lengths_MK: Tensor
    scores_MK: Tensor  # log-probability divided by the length penalty
    log_probs_MK: Tensor


def length_penalty(lengths: Tensor, alpha: float) -> Tensor:
    """((5 + length) / 6)^α; an output's length is counted with its end."""
    return ((5.0 + lengths) / 6.0) ** alpha


@torch.inference_mode()
def beam_search(
    model: Steps, beams: int, max_lengths_M: Tensor, alpha: float, exact_lengths_M: Tensor | None = None
) -> Hypotheses:
    """Search until every sentence has `beams` finished outputs that no open one would join if it ended next.

    An output of `max_lengths_M` tokens must end there; with `exact_lengths_M`, every output has just that length.
    """
    search = _Search(beams, exact_lengths_M if exact_lengths_M is not None else max_lengths_M, alpha)
    tokens_N = torch.full((max_lengths_M.shape[0] * beams,), BOS, device=max_lengths_M.device)
    while search.open_sentences:
        log_probs_NV = model.step(tokens_N)
        tokens_N, rows_N, sentences_B = search.advance(log_probs_NV, exact=exact_lengths_M is not None)
        if search.open_sentences:
            model.select(rows_N, sentences_B)
    return search.finished()


class _Search:
    def __init__(self, beams: int, limits_M: Tensor, alpha: float) -> None:
        self._beams, self._alpha = beams, alpha
        self._device = limits_M.device
        sentences, width = limits_M.shape[0], int(limits_M.max()) if len(limits_M) else 0
        self._limits_B = limits_M
        self._sentence_B = torch.arange(sentences, device=self._device)  # which sentence an open row belongs to
        self._length = 0  # tokens of every open hypothesis
        # At first all beams of a sentence are the same, so only one may have a score.
        self._open_scores_BK = torch.full((sentences, beams), -torch.inf, device=self._device)
        self._open_scores_BK[:, :1] = 0.0
        self._open_tokens_BKT = torch.full((sentences, beams, width), PAD, device=self._device)
        self._tokens_MKT = self._open_tokens_BKT.clone()
        self._lengths_MK = torch.zeros((sentences, beams), dtype=torch.long, device=self._device)
        self._scores_MK = torch.full((sentences, beams), -torch.inf, device=self._device)
        self._log_probs_MK = self._scores_MK.clone()

    @property
    def open_sentences(self) -> int:
        return len(self._sentence_B)

    def finished(self) -> Hypotheses:
        return Hypotheses(self._tokens_MKT, self._lengths_MK, self._scores_MK, self._log_probs_MK)

    def advance(self, log_probs_NV: Tensor, exact: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Take one step: each row's next token, the row it comes from, and the sentences that stay (None: all)."""
        total_BKV = self._open_scores_BK[..., None] + log_probs_NV.view(-1, self._beams, log_probs_NV.shape[-1])
        at_limit_B1 = (self._limits_B == self._length)[:, None]
        ending_BK = total_BKV[..., EOS].clone()
        if exact:
            ending_BK = ending_BK.masked_fill(~at_limit_B1, -torch.inf)
        if self._length == 0:  # an empty line is no translation
            ending_BK.fill_(-torch.inf)
        self._keep_best_finished(ending_BK)

        total_BKV[..., EOS] = -torch.inf
        labels = total_BKV.shape[-1]
        continuing_BX = total_BKV.flatten(1).masked_fill(at_limit_B1, -torch.inf)
        self._open_scores_BK, chosen_BK = _top(continuing_BX, self._beams)
        from_beam_BK, token_BK = chosen_BK // labels, chosen_BK % labels
        stays_B = self._can_still_improve()
        staying = None if bool(stays_B.all()) else stays_B.nonzero()[:, 0]
        base_B1 = torch.arange(len(stays_B), device=self._device)[:, None] * self._beams
        rows_BK = base_B1 + from_beam_BK
        self._open_tokens_BKT = self._open_tokens_BKT.gather(
            1, from_beam_BK[..., None].expand_as(self._open_tokens_BKT)
        )
        if self._length < self._open_tokens_BKT.shape[-1]:
            self._open_tokens_BKT[..., self._length] = token_BK
        self._length += 1
        if staying is not None:
            self._leave_only(staying)
            rows_BK, token_BK = rows_BK[staying], token_BK[staying]
        return token_BK.flatten(), rows_BK.flatten(), staying

    def _keep_best_finished(self, ending_BK: Tensor) -> None:
        """Merge the hypotheses that end now into the k best of their sentences."""
        length = torch.tensor(self._length, device=self._device)
        penalty = length_penalty(length + 1.0, self._alpha)
        old = self._sentence_B
        scores_B2K = torch.cat([self._scores_MK[old], ending_BK / penalty], dim=1)
        log_probs_B2K = torch.cat([self._log_probs_MK[old], ending_BK], dim=1)
        lengths_B2K = torch.cat([self._lengths_MK[old], length.expand_as(ending_BK)], dim=1)
        tokens_B2KT = torch.cat([self._tokens_MKT[old], self._open_tokens_BKT], dim=1)
        best_BK, which_BK = scores_B2K.topk(self._beams, dim=1)
        self._scores_MK[old] = best_BK
        self._log_probs_MK[old] = log_probs_B2K.gather(1, which_BK)
        self._lengths_MK[old] = lengths_B2K.gather(1, which_BK)
        self._tokens_MKT[old] = tokens_B2KT.gather(1, which_BK[..., None].expand_as(self._tokens_MKT[old]))

    def _can_still_improve(self) -> Tensor:
        """Whether the best open hypothesis, were it to end free of charge, would enter the k best."""
        penalty = length_penalty(torch.tensor(self._length + 2.0, device=self._device), self._alpha)
        hope_B = self._open_scores_BK.max(dim=1).values / penalty
        return hope_B > self._scores_MK[self._sentence_B].min(dim=1).values

    def _leave_only(self, staying: Tensor) -> None:
        self._sentence_B = self._sentence_B[staying]
        self._limits_B = self._limits_B[staying]
        self._open_scores_BK = self._open_scores_BK[staying]
        self._open_tokens_BKT = self._open_tokens_BKT[staying]


def _top(scores_BX: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """topk, also where there are fewer than `count` entries (they are filled up with -inf)."""
    missing = count - scores_BX.shape[1]
    if missing > 0:
        scores_BX = torch.nn.functional.pad(scores_BX, (0, missing), value=-torch.inf)
    values, indices = scores_BX.topk(count, dim=1)
    return values, indices.clamp_max(scores_BX.shape[1] - missing - 1) if missing > 0 else indices
