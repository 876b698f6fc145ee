"""A model as it is run best on its device: batches of ids in, ids out, nothing known of text.

On a GPU, weights are kept in bf16, whatever comes in few shapes is replayed from CUDA graphs, and each batch of a
student waits for the device once, when its result is fetched. Shapes as in one_pass.py and beam.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from emnat import world
from emnat.config import Decode, NarDecoder
from emnat.data import collate_sources, plan_decoding
from emnat.data.store import Ints
from emnat.decoding.beam import BeamSearch, Hypotheses, cache_size
from emnat.decoding.one_pass import decode_in_one_pass
from emnat.decoding.sampling import sample
from emnat.errors import UserError
from emnat.graphs import Graphs
from emnat.models import NAT, AnyModel, Teacher

_MULTIPLE = 8  # of which sizes are on a GPU: few graphs, aligned reads
_CPU_TOKENS = 8_192  # of a batch, over all beams or candidates
_MEMORY_SHARE = 0.4  # of a GPU's free memory that a batch may take by our estimate
_COPIES = 4  # of its scores and states that an operation may hold at a time
_MOST_ROWS = 65_536  # of a batch; more are no faster
_FEW_ROWS = 512  # up to here a search is bound by launching kernels, so its steps are captured,
_FEW_TOKENS = 32_768  # and so are passes up to here; graphs of larger ones would hold much memory
_KEPT_SEARCHES = 16  # captured ones; each holds its caches
Result = TypeVar("Result")
SomeModel = TypeVar("SomeModel", bound=torch.nn.Module)
Ids = Sequence[Sequence[int] | Ints]


class Engine:
    def __init__(
        self, model: AnyModel, referee: Teacher | None, device: torch.device, precision: str, settings: Decode
    ) -> None:
        self._model = _as_decoded(model, device, precision)
        self._referee = None if referee is None else _as_decoded(referee, device, precision)
        self._device, self._settings = device, settings
        # (Not a method of its own: then engines, with their weights and graphs, go when nobody uses them any more.)
        one_pass = partial(_one_pass, self._model, self._referee, settings.length_penalty)
        self._passes, self._large_passes = (Graphs(one_pass, device, enabled) for enabled in (True, False))
        self._output_sizes: dict[int, int] = {}  # for each padded source size, room enough for all outputs so far
        self._searches: dict[tuple[int, ...], BeamSearch] = {}

    def one_pass(
        self, sources: Ids, decoder: NarDecoder, candidates: int, rescored: bool, exact_lengths: Ints | None
    ) -> list[list[int]]:
        """A student's outputs for sources that have a token at all."""

        def translate(indices: Ints) -> list[list[int]]:
            source_BS, source_lengths_B = self._collate(sources, indices)
            source_size = source_BS.shape[1]
            if exact_lengths is None:
                exact_B, size = torch.zeros_like(source_lengths_B), self._output_size(source_size, candidates)
            else:
                exact_B, size = torch.from_numpy(exact_lengths[indices]), int(exact_lengths[indices].max())
            input_BX = torch.cat([source_BS, source_lengths_B[:, None], exact_B[:, None]], dim=1)  # one copy, not three
            passes = self._passes if input_BX.numel() * candidates <= _FEW_TOKENS else self._large_passes
            while True:
                (output_BX,) = passes((input_BX,), size, decoder, candidates, rescored)
                found_BX = output_BX.cpu().numpy()  # the one wait
                tokens_BT, lengths_B, needed_B = found_BX[:, :-2], found_BX[:, -2], found_BX[:, -1]
                if size is None or (needed := int(needed_B.max())) <= size:
                    break
                size = self._output_sizes[source_size] = self._rounded(needed)
            return [row[:length].tolist() for row, length in zip(tokens_BT, lengths_B, strict=True)]

        return self._in_batches(sources, candidates, translate)

    def search_best(self, sources: Ids, beams: int, exact_lengths: Ints | None) -> list[list[int]]:
        """A teacher's best outputs, likewise."""

        def translate(indices: Ints) -> list[list[int]]:
            exact = None if exact_lengths is None else exact_lengths[indices]
            found = self.search(sources, indices, beams, exact)
            rows, lengths = found.tokens_MKT[:, 0].cpu().numpy(), found.lengths_MK[:, 0].tolist()
            return [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]

        return self._in_batches(sources, beams, translate)

    def search(self, sources: Ids, indices: Ints, beams: int, exact_lengths: Ints | None = None) -> Hypotheses:
        """A teacher's k best outputs for one batch of sources."""
        source_BS, source_lengths_B = self._collate(sources, indices)
        if exact_lengths is None:
            limits_B = self._longest_output(source_lengths_B)
            size = int(self._longest_output(torch.tensor([source_BS.shape[1]]))[0])
        else:
            limits_B = torch.from_numpy(exact_lengths)
            size = int(limits_B.max())
        search = self._room_for_search(len(indices), source_BS.shape[1], beams, size)
        source_BS, source_lengths_B, limits_B = (
            part.to(self._device, non_blocking=True) for part in (source_BS, source_lengths_B, limits_B)
        )
        return search.run(source_BS, source_lengths_B, limits_B, exact=exact_lengths is not None)

    def sample(self, sources: Ids, indices: Ints, beams: int) -> Hypotheses:
        """As many outputs of each source of a batch, drawn from a teacher's distribution."""
        assert isinstance(self._model, Teacher)
        source_BS, source_lengths_B = (part.to(self._device) for part in self._collate(sources, indices))
        limits_B = self._longest_output(source_lengths_B)
        with torch.inference_mode():
            state = self._model.state(len(indices), source_BS.shape[1], beams, cache_size(int(limits_B.max())))
        return sample(state, source_BS, source_lengths_B, limits_B, beams)

    def plan(self, source_lengths: Ints, rows_each: int) -> list[Ints]:
        """Batches for `rows_each` beams or candidates of each source; the longest sources come first."""
        return plan_decoding(source_lengths, lambda longest: self._sentences_at_once(longest, rows_each))

    def _in_batches(
        self, sources: Ids, rows_each: int, translate: Callable[[Ints], list[list[int]]]
    ) -> list[list[int]]:
        results: list[list[int]] = [[] for _ in sources]
        lengths = np.array([len(ids) for ids in sources], np.int64)
        present = np.flatnonzero(lengths)
        for batch in self.plan(lengths[present], rows_each):
            for indices, outputs in halved_until_it_fits(present[batch], translate):
                for index, ids in zip(indices, outputs, strict=True):
                    results[index] = ids
        return results

    def _room_for_search(self, sentences: int, source_size: int, beams: int, size: int) -> BeamSearch:
        assert isinstance(self._model, Teacher)
        captured = self._device.type == "cuda" and sentences * beams <= _FEW_ROWS
        key = (sentences, source_size, beams, size)
        if captured and key in self._searches:
            return self._searches[key]
        with torch.inference_mode():
            state = self._model.state(sentences, source_size, beams, cache_size(size))
            search = BeamSearch(state, sentences, beams, size, self._settings.length_penalty, self._device, captured)
        if captured:
            self._searches[key] = search
            if len(self._searches) > _KEPT_SEARCHES:
                del self._searches[next(iter(self._searches))]
        return search

    def _collate(self, sources: Ids, indices: Ints) -> tuple[Tensor, Tensor]:
        source_BS, source_lengths_B = collate_sources(sources, indices)
        if self._device.type == "cuda":  # few shapes, few graphs
            source_BS = F.pad(source_BS, (0, self._rounded(source_BS.shape[1]) - source_BS.shape[1]))
        return source_BS, source_lengths_B

    def _output_size(self, source_size: int, candidates: int) -> int | None:
        """Room for outputs on a GPU: a guess that is corrected when a longer one comes."""
        if self._device.type != "cuda":
            return None
        guess = self._rounded(source_size + source_size // 4 + candidates // 2 + 2)
        return max(guess, self._output_sizes.get(source_size, 0))

    def _rounded(self, length: int) -> int:
        return min(-(-length // _MULTIPLE) * _MULTIPLE, self._model.max_tokens)

    def _longest_output(self, source_lengths_B: Tensor) -> Tensor:
        """Of each sentence by itself, so that its translation does not depend on its batch."""
        wanted_B = source_lengths_B * self._settings.max_length_factor + self._settings.max_length_extra
        return wanted_B.long().clamp(1, self._model.max_tokens)

    def _sentences_at_once(self, source_length: int, rows_each: int) -> int:
        """By memory: a search holds one position's scores and the states of all, a pass the scores of all positions."""
        teacher = isinstance(self._model, Teacher)
        if self._settings.tokens is not None or self._device.type != "cuda":
            positions = source_length + (0 if teacher else rows_each // 2)
            return max(1, (self._settings.tokens or _CPU_TOKENS) // (rows_each * positions))
        model, positions = self._model.settings, source_length * 5 // 4 + 10
        scores = self._model.vocabulary * 4 * _COPIES
        states = model.hidden * model.decoder_layers * 2 * 2 * _COPIES  # keys and values in bf16
        row = scores + positions * states if teacher else positions * (scores + states)
        return max(1, min(int(self._memory / row), _MOST_ROWS) // rows_each)

    def scored_at_once(self, length: int, rows_each: int) -> int:
        """Sentences of a batch whose given targets, `rows_each` of each, are scored in one go."""
        if self._settings.tokens is not None or self._device.type != "cuda":
            return max(1, (self._settings.tokens or _CPU_TOKENS) // (rows_each * length))
        position = self._model.vocabulary * 4 * _COPIES + self._model.settings.filter * 2 * _COPIES
        return max(1, int(self._memory / position) // (rows_each * (length + 1)))

    @cached_property
    def _memory(self) -> float:
        """Bytes that a batch may take; asked for once, since asking takes longer than a short translation."""
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return _MEMORY_SHARE * (torch.cuda.mem_get_info(self._device)[0] + unused)


def halved_until_it_fits(indices: Ints, function: Callable[[Ints], Result]) -> Iterator[tuple[Ints, Result]]:
    """`function` of all indices; where memory runs out, of one half and then of the other."""
    pending = [indices]
    while pending:
        part = pending.pop(0)
        try:
            result = function(part)
        except torch.OutOfMemoryError:
            if len(part) == 1:
                raise UserError(
                    "not enough memory on the device for a single sentence: use a smaller beam, fewer candidates, "
                    "or device = 'cpu'."
                ) from None
            torch.cuda.empty_cache()
            pending[:0] = np.array_split(part, 2)
        else:
            yield part, result


def _one_pass(
    student: AnyModel,
    referee: Teacher | None,
    alpha: float,
    input_BX: Tensor,
    size: int | None,
    decoder: NarDecoder,
    candidates: int,
    rescored: bool,
) -> tuple[Tensor]:
    """One tensor in (sources, their lengths, exact lengths), one out (tokens, lengths, lengths wanted)."""
    assert isinstance(student, NAT)
    results = decode_in_one_pass(
        student,
        input_BX[:, :-2],
        input_BX[:, -2],
        input_BX[:, -1],
        size,
        decoder,
        candidates,
        referee if rescored else None,
        alpha,
    )
    return (torch.cat([part.view(len(input_BX), -1) for part in results], dim=1),)


def _as_decoded(model: SomeModel, device: torch.device, precision: str) -> SomeModel:
    if not world.uses_bf16(device, precision):
        return model
    return copy.deepcopy(model).to(torch.bfloat16).eval()
