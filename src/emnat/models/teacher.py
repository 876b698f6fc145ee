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
    TokenLoss,
    attention_bias,
    choose_attention,
    initialise,
    reads_elsewhere,
    sequence_log_prob,
    without,
)
from emnat.text.subwords import BOS, EOS, PAD, UNK

_FORBIDDEN = (slice(PAD, BOS + 1), slice(UNK, UNK + 1))


class Teacher(nn.Module):
    kind = "teacher"

    def __init__(self, settings: Model, vocabulary: int, max_tokens: int) -> None:
        super().__init__()
        self.settings, self.vocabulary, self.max_tokens = settings, vocabulary, max_tokens
        self.embedding = Embedding(settings, vocabulary, positions=max_tokens + 1)  # one more: BOS stands in front
        self.encoder = Encoder(settings, self.embedding)
        self.decoder = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.decoder_layers))
        self.norm = nn.LayerNorm(settings.hidden) if settings.norm == "pre" else nn.Identity()
        self.token_loss = TokenLoss()
        initialise(self)
        choose_attention()

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
        loss: Tensor = self.token_loss(logits_BTV, wanted_BT, label_smoothing)
        return loss

    def log_prob(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_NT: Tensor, target_lengths_N: Tensor
    ) -> Tensor:
        """log p(y|x) of every row, its end included; N is a multiple of B (several targets of each source)."""
        return self.log_prob_given(self.encode(source_BS, source_lengths_B), target_NT, target_lengths_N)

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        memory: Memory = self.encoder(source_BS, source_lengths_B)
        return memory

    def log_prob_given(self, memory: Memory, target_NT: Tensor, target_lengths_N: Tensor) -> Tensor:
        logits_NTV = without(self._logits(memory, _after_bos(target_NT)), _FORBIDDEN)
        each_N = torch.arange(len(target_NT), device=target_NT.device)
        return sequence_log_prob(logits_NTV, each_N, _with_eos(target_NT, target_lengths_N), target_lengths_N + 1)

    def state(self, sentences: int, source_size: int, beams: int, steps: int) -> TeacherState:
        """Room for a search that asks for one token after another, at most `steps` of them."""
        return TeacherState(self, sentences, source_size, beams, steps)

    def _logits(self, memory: Memory, inputs_NT: Tensor) -> Tensor:
        x_NTD = self.embedding.target(inputs_NT)
        for layer in self.decoder:
            x_NTD = layer(x_NTD, None, memory.states_BSD, memory.bias_B11S)
        return self.embedding.logits(self.norm(x_NTD))


class TeacherState:
    """The encoded sources and the key/value caches of a search under way. Search knows only `step` and `select`.

    All buffers stay where they are and nothing waits for the device, so that steps can be captured as CUDA graphs.
    Shapes besides those of layers.py: L layers, and 2 for keys and values.
    """

    def __init__(self, teacher: Teacher, sentences: int, source_size: int, beams: int, steps: int) -> None:
        self._teacher, self._beams = teacher, beams
        self._layers = cast(list[DecoderLayer], list(teacher.decoder))
        heads, hidden = teacher.settings.heads, teacher.settings.hidden
        weights = self._layers[0].attention.output.weight

        def buffer(rows: int, size: int) -> Tensor:
            return weights.new_zeros(len(self._layers), 2, rows, heads, size, hidden // heads)

        self._memory_L2BHSd, self._cache_L2NHTd = buffer(sentences, source_size), buffer(sentences * beams, steps)
        self._bias_B11S = attention_bias(weights.new_zeros(sentences, dtype=torch.long), source_size, weights)
        self._position_1 = weights.new_zeros(1, dtype=torch.long)
        self._rows_NT: Tensor | None = None
        if reads_elsewhere(hidden, heads, weights.device):
            self._rows_NT = weights.new_zeros(sentences * beams, steps, dtype=torch.int32)

    def begin(self, source_BS: Tensor, source_lengths_B: Tensor) -> None:
        memory = self._teacher.encoder(source_BS, source_lengths_B)
        self._bias_B11S.copy_(memory.bias_B11S)
        for layer, buffers_2BHSd in zip(self._layers, self._memory_L2BHSd.unbind(), strict=True):
            for buffer, value in zip(buffers_2BHSd, layer.cross.keys_and_values(memory.states_BSD), strict=True):
                buffer.copy_(value)
        self._position_1.zero_()

    def step(self, tokens_N: Tensor, seen: int) -> Tensor:
        """Feed the token just chosen in every row; get the log-probabilities of the next, (N, V).

        `seen` is at least the number of tokens fed so far, this one included.
        """
        teacher = self._teacher
        x_N1D = teacher.embedding.target_at(tokens_N[:, None], self._position_1)
        bias_111T = attention_bias(self._position_1 + 1, self._cache_L2NHTd.shape[-2], x_N1D)
        if self._rows_NT is not None:  # what is written now lies in each row's own place
            own_N1 = torch.arange(len(tokens_N), dtype=torch.int32, device=tokens_N.device)[:, None]
            self._rows_NT.index_copy_(1, self._position_1, own_N1)
        for layer, buffer, (keys, values) in zip(self._layers, self._cache_L2NHTd, self._memory_L2BHSd, strict=True):
            cache = Cache(buffer, self._position_1, bias_111T, self._rows_NT)
            x_N1D = layer.step(x_N1D, cache, seen, (keys, values), self._bias_B11S)
        self._position_1 += 1
        return without(teacher.embedding.logits(teacher.norm(x_N1D[:, 0])), _FORBIDDEN).log_softmax(-1)

    def select(self, rows_N: Tensor, seen: int) -> None:
        """Row i goes on from what was row `rows_N[i]`."""
        if self._rows_NT is not None:
            self._rows_NT.copy_(self._rows_NT.index_select(0, rows_N))
            return
        used = self._cache_L2NHTd[..., :seen, :]
        used.copy_(used.index_select(2, rows_N))

    def keep(self, sentences_B: Tensor) -> None:
        """Only these sources stay. (This makes new buffers.)"""
        rows_BK = sentences_B[:, None] * self._beams + torch.arange(self._beams, device=sentences_B.device)
        if self._rows_NT is not None:
            new_rows_N = torch.zeros(len(self._rows_NT), dtype=torch.int32, device=sentences_B.device)
            new_rows_N[rows_BK.flatten()] = torch.arange(rows_BK.numel(), dtype=torch.int32, device=sentences_B.device)
            self._rows_NT = new_rows_N[self._rows_NT[rows_BK.flatten()].long()]
        self._cache_L2NHTd = self._cache_L2NHTd.index_select(2, rows_BK.flatten())
        self._memory_L2BHSd = self._memory_L2BHSd.index_select(2, sentences_B)
        self._bias_B11S = self._bias_B11S[sentences_B]


def _after_bos(target_NT: Tensor) -> Tensor:
    return F.pad(target_NT, (1, 0), value=BOS)


def _with_eos(target_NT: Tensor, lengths_N: Tensor) -> Tensor:
    return F.pad(target_NT, (0, 1), value=PAD).scatter(1, lengths_N[:, None], torch.full_like(lengths_N, EOS)[:, None])
