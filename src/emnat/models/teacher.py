"""The autoregressive Transformer p(y|x; φ): teacher, proposer of candidates, and referee.

Shapes as in layers.py; K beams of each source, N = B·K.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emnat.config import Model
from emnat.models.layers import (
    Cache,
    DecoderLayer,
    Embedding,
    Encoder,
    Memory,
    initialise,
    normalised,
    sequence_log_prob,
)
from emnat.text.subwords import BOS, EOS, PAD, UNK

_FORBIDDEN = (PAD, BOS, UNK)


class Teacher(nn.Module):
    kind = "teacher"

    def __init__(self, settings: Model, vocabulary: int, max_tokens: int) -> None:
        super().__init__()
        self.settings, self.vocabulary, self.max_tokens = settings, vocabulary, max_tokens
        self.embedding = Embedding(settings, vocabulary, positions=max_tokens + 1)  # one more: BOS stands in front
        self.encoder = Encoder(settings, self.embedding)
        self.decoder = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.decoder_layers))
        self.norm = nn.LayerNorm(settings.hidden) if settings.norm == "pre" else nn.Identity()
        initialise(self)

    def loss(
        self,
        source_BS: Tensor,
        source_lengths_B: Tensor,
        target_BT: Tensor,
        target_lengths_B: Tensor,
        label_smoothing: float,
    ) -> Tensor:
        """Cross-entropy summed over all target tokens, each sentence's end among them."""
        memory = self.encoder(source_BS, source_lengths_B)
        logits_BTV = self._logits(memory, _after_bos(target_BT))
        wanted_BT = _with_eos(target_BT, target_lengths_B)
        return F.cross_entropy(
            logits_BTV.flatten(0, 1).float(),
            wanted_BT.flatten(),
            ignore_index=PAD,
            label_smoothing=label_smoothing,
            reduction="sum",
        )

    def log_prob(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_NT: Tensor, target_lengths_N: Tensor
    ) -> Tensor:
        """log p(y|x) of every row, its end included; N is a multiple of B (several targets of each source)."""
        memory = self.encoder(source_BS, source_lengths_B)
        logits_NTV = self._logits(memory, _after_bos(target_NT))
        wanted_NT = _with_eos(target_NT, target_lengths_N)
        return sequence_log_prob(logits_NTV, _FORBIDDEN, wanted_NT, target_lengths_N + 1)

    def start(self, source_BS: Tensor, source_lengths_B: Tensor, beams: int, steps: int) -> TeacherState:
        """Ready to be asked for one token after another, at most `steps` of them."""
        return TeacherState(self, self.encoder(source_BS, source_lengths_B), beams, steps)

    def _logits(self, memory: Memory, inputs_NT: Tensor) -> Tensor:
        x_NTD = self.embedding.target(inputs_NT)
        for layer in self.decoder:
            x_NTD = layer(x_NTD, None, memory)
        return self.embedding.logits(self.norm(x_NTD))


class TeacherState:
    """The key/value cache of a search under way; search knows only `step` and `select`."""

    def __init__(self, teacher: Teacher, memory: Memory, beams: int, steps: int) -> None:
        self._teacher = teacher
        self._mask_B11S = memory.mask_B11S
        self._layers = cast(list[DecoderLayer], list(teacher.decoder))
        self._memory = [layer.cross.keys_and_values(memory.states_BSD) for layer in self._layers]
        self._position = 0
        batch, heads, _, depth = self._memory[0][0].shape
        shape = (batch * beams, heads, steps, depth)
        self._caches = [Cache(key.new_zeros(shape), key.new_zeros(shape)) for key, _ in self._memory]

    def step(self, tokens_N: Tensor) -> Tensor:
        """Feed the token just chosen in every row; get the log-probabilities of the next, (N, V)."""
        teacher = self._teacher
        x_N1D = teacher.embedding.target(tokens_N[:, None], self._position)
        for layer, cache, keys_values in zip(self._layers, self._caches, self._memory, strict=True):
            x_N1D = layer.step(x_N1D, cache, self._position, keys_values, self._mask_B11S)
        self._position += 1
        return normalised(teacher.embedding.logits(teacher.norm(x_N1D[:, 0])), _FORBIDDEN)

    def select(self, rows_N: Tensor, sentences_B: Tensor | None) -> None:
        """Row i goes on from what was row `rows_N[i]`; with `sentences_B`, only those sources stay."""
        for cache in self._caches:
            cache.select(rows_N)
        if sentences_B is not None:
            self._mask_B11S = self._mask_B11S.index_select(0, sentences_B)
            self._memory = [
                (key.index_select(0, sentences_B), value.index_select(0, sentences_B)) for key, value in self._memory
            ]


def _after_bos(target_NT: Tensor) -> Tensor:
    return F.pad(target_NT, (1, 0), value=BOS)


def _with_eos(target_NT: Tensor, lengths_N: Tensor) -> Tensor:
    return F.pad(target_NT, (0, 1), value=PAD).scatter(1, lengths_N[:, None], torch.full_like(lengths_N, EOS)[:, None])
