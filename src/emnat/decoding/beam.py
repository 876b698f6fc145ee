"""Batched beam search for the k best outputs. It sees step functions and scores, never a model.

Shapes: B sentences still searched, M sentences asked for, K beams, N = B·K rows, T positions, V labels. A sentence's
result does not depend on its company: limits, pruning and stopping are its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emnat.decoding.top import top_k_sums
from emnat.graphs import Graphs
from emnat.text.subwords import BOS, EOS, PAD

_SEEN = 8  # caches are read in pieces of so many positions: few shapes, little waste
_LOOK = 4  # steps between looks at what is finished: looking waits for the device
_CROWDED = 0.75  # share of open sentences under which the finished ones leave
Lengths = TypeVar("Lengths", Tensor, npt.NDArray[np.floating])


def cache_size(longest: int) -> int:
    """Positions that a search for outputs of up to `longest` tokens reads and writes."""
    return -(-(longest + 1) // _SEEN) * _SEEN


class Steps(Protocol):
    """A model under search (see TeacherState)."""

    def begin(self, source_BS: Tensor, source_lengths_B: Tensor) -> None: ...

    def step(self, tokens_N: Tensor, seen: int) -> Tensor: ...

    def select(self, rows_N: Tensor, seen: int) -> None: ...

    def keep(self, sentences_B: Tensor) -> None: ...


@dataclass(frozen=True)
class Hypotheses:
    """The k best outputs of each sentence, best first; where fewer exist, the score is -inf."""

    tokens_MKT: Tensor
    lengths_MK: Tensor
    scores_MK: Tensor  # log-probability divided by the length penalty
    log_probs_MK: Tensor


def length_penalty(lengths: Lengths, alpha: float) -> Lengths:
    """((5 + length) / 6)^α; an output's length is counted with its end."""
    return ((5.0 + lengths) / 6.0) ** alpha


@dataclass(frozen=True)
class _State:
    """All that a step changes, always in place: open hypotheses, all of one length, and the k best finished ones."""

    limits_B: Tensor
    length: Tensor  # tokens of every open hypothesis, a number on the device
    done_B: Tensor
    last_tokens_BK: Tensor
    open_scores_BK: Tensor
    open_tokens_BKT: Tensor
    tokens_BKT: Tensor
    lengths_BK: Tensor
    scores_BK: Tensor
    log_probs_BK: Tensor

    def of(self, sentences_X: Tensor) -> _State:
        """The state of some sentences only."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return _State(**{name: part[sentences_X] if part.dim() else part for name, part in parts.items()})


def _room(sentences: int, beams: int, size: int, device: torch.device) -> _State:
    def numbers(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return _State(
        limits_B=numbers(sentences),
        length=numbers(),
        done_B=numbers(sentences, dtype=torch.bool),
        last_tokens_BK=numbers(sentences, beams),
        open_scores_BK=numbers(sentences, beams, dtype=torch.float32),
        open_tokens_BKT=numbers(sentences, beams, size),
        tokens_BKT=numbers(sentences, beams, size),
        lengths_BK=numbers(sentences, beams),
        scores_BK=numbers(sentences, beams, dtype=torch.float32),
        log_probs_BK=numbers(sentences, beams, dtype=torch.float32),
    )


class BeamSearch:
    """Searches for `sentences` outputs at once, of at most `size` tokens each.

    It goes on until every sentence has `beams` finished outputs that no open one would join if it ended next. With
    `captured`, steps are replayed as CUDA graphs; that pays for few sentences, if the search is used again and again.
    Without, sentences leave the batch as they finish, and the search is used once.
    """

    def __init__(
        self, model: Steps, sentences: int, beams: int, size: int, alpha: float, device: torch.device, captured: bool
    ) -> None:
        self._model, self._beams, self._size, self._alpha = model, beams, size, alpha
        self._captured, self._device = captured, device
        self._state = _room(sentences, beams, size, device)
        self._sentence_B = torch.arange(sentences, device=device)  # which of the sentences asked for an open row is
        # A search used once must not hold on to itself: its caches would wait for the garbage collector.
        self._graphs = self._make_graphs() if captured else None

    @torch.inference_mode()
    def run(
        self, source_BS: Tensor, source_lengths_B: Tensor, max_lengths_B: Tensor, exact: bool = False
    ) -> Hypotheses:
        """An output of `max_lengths_B` tokens must end there; an `exact` one may end nowhere else."""
        begin, advance = self._graphs or self._make_graphs()
        begin((source_BS, source_lengths_B, max_lengths_B))
        results = self._state
        for length in range(self._size + 1):
            seen = cache_size(length)
            advance((), seen, exact)
            if length % _LOOK == _LOOK - 1 and length < self._size:
                open_X = (~self._state.done_B).nonzero()[:, 0]
                if len(open_X) == 0:
                    break
                if not self._captured and len(open_X) < _CROWDED * len(self._sentence_B):
                    results = self._leave_only(open_X, results)
        if results is not self._state:
            self._hand_over(results)
        return _best_first(results)

    def _make_graphs(self) -> tuple[Graphs, Graphs]:
        start, advance = (Graphs(step, self._device, self._captured) for step in (self._start, self._advance))
        return start, advance

    def _start(self, source_BS: Tensor, source_lengths_B: Tensor, limits_B: Tensor) -> tuple[Tensor, ...]:
        self._model.begin(source_BS, source_lengths_B)
        state = self._state
        state.limits_B.copy_(limits_B)
        state.length.zero_()
        state.done_B.fill_(False)
        state.last_tokens_BK.fill_(BOS)
        # At first all beams of a sentence are the same, so only one may have a score.
        state.open_scores_BK.fill_(-torch.inf)
        state.open_scores_BK[:, :1] = 0.0
        for tokens in (state.open_tokens_BKT, state.tokens_BKT):
            tokens.fill_(PAD)
        state.lengths_BK.zero_()
        for scores in (state.scores_BK, state.log_probs_BK):
            scores.fill_(-torch.inf)
        return ()

    def _advance(self, seen: int, exact: bool) -> tuple[Tensor, ...]:
        """One step of every open hypothesis."""
        state = self._state
        log_probs_NV = self._model.step(state.last_tokens_BK.flatten(), seen)
        log_probs_BKV = log_probs_NV.view(-1, self._beams, log_probs_NV.shape[-1])
        at_limit_B1 = (state.limits_B == state.length)[:, None]
        ending_BK = state.open_scores_BK + log_probs_BKV[..., EOS]
        # An empty line is no translation, and what is done stays as it is.
        cannot_end_B1 = state.done_B[:, None] | (state.length == 0)
        if exact:
            cannot_end_B1 = cannot_end_B1 | ~at_limit_B1
        self._keep_best_finished(ending_BK.masked_fill(cannot_end_B1, -torch.inf))

        log_probs_BKV[..., EOS] = -torch.inf
        open_BK = state.open_scores_BK.masked_fill(at_limit_B1, -torch.inf)
        scores_BK, from_beam_BK, labels_BK = top_k_sums(open_BK, log_probs_BKV, self._beams)
        state.open_scores_BK.copy_(scores_BK)
        state.last_tokens_BK.copy_(labels_BK)
        self._extend(from_beam_BK)
        state.length.add_(1)
        state.done_B.logical_or_(~self._can_still_improve())
        first_row_B1 = torch.arange(len(from_beam_BK), device=from_beam_BK.device)[:, None] * self._beams
        self._model.select((first_row_B1 + from_beam_BK).flatten(), seen)
        return ()

    def _keep_best_finished(self, ending_BK: Tensor) -> None:
        """Merge the hypotheses that end now into the k best of their sentences."""
        state = self._state
        penalty = length_penalty(state.length + 1.0, self._alpha)
        scores_BK, which_BK = torch.cat([state.scores_BK, ending_BK / penalty], dim=1).topk(
            self._beams, dim=1, sorted=False
        )
        state.scores_BK.copy_(scores_BK)
        state.log_probs_BK.copy_(torch.cat([state.log_probs_BK, ending_BK], dim=1).gather(1, which_BK))
        lengths_BX = torch.cat([state.lengths_BK, state.length.expand_as(ending_BK)], dim=1)
        state.lengths_BK.copy_(lengths_BX.gather(1, which_BK))
        tokens_BXT = torch.cat([state.tokens_BKT, state.open_tokens_BKT], dim=1)
        state.tokens_BKT.copy_(tokens_BXT.gather(1, which_BK[..., None].expand_as(state.tokens_BKT)))

    def _extend(self, from_beam_BK: Tensor) -> None:
        """Each open hypothesis becomes the one it came from with its last token after it."""
        state = self._state
        tokens_BKT = state.open_tokens_BKT.gather(1, from_beam_BK[..., None].expand_as(state.open_tokens_BKT))
        here_T = torch.arange(tokens_BKT.shape[-1], device=tokens_BKT.device) == state.length
        state.open_tokens_BKT.copy_(torch.where(here_T, state.last_tokens_BK[..., None], tokens_BKT))

    def _can_still_improve(self) -> Tensor:
        """Whether the best open hypothesis, were it to end free of charge, would enter the k best."""
        state = self._state
        hope_B = state.open_scores_BK.amax(1) / length_penalty(state.length + 1.0, self._alpha)
        return hope_B > state.scores_BK.amin(1)

    def _leave_only(self, open_X: Tensor, results: _State) -> _State:
        """Finished sentences make room; what they found is in the results."""
        if results is self._state:
            results = self._state.of(self._sentence_B)
        else:
            self._hand_over(results)
        self._state = self._state.of(open_X)
        self._sentence_B = self._sentence_B[open_X]
        self._model.keep(open_X)
        return results

    def _hand_over(self, results: _State) -> None:
        for name in ("tokens_BKT", "lengths_BK", "scores_BK", "log_probs_BK"):
            getattr(results, name)[self._sentence_B] = getattr(self._state, name)


def _best_first(found: _State) -> Hypotheses:
    scores_MK, order_MK = found.scores_BK.sort(dim=1, descending=True, stable=True)
    return Hypotheses(
        found.tokens_BKT.gather(1, order_MK[..., None].expand_as(found.tokens_BKT)),
        found.lengths_BK.gather(1, order_MK),
        scores_MK,
        found.log_probs_BK.gather(1, order_MK),
    )
