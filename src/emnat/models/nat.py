"""The vanilla non-autoregressive Transformer (NAT): log p(y|x; θ) = log p(T'|x) + Σ_i log p(y_i|x, T').

The decoder's input is padding symbols with learned positions, no copy of the source; a classifier over the averaged
encoder states gives the target length. A student is any model with the methods of this one. Shapes as in layers.py;
C length candidates of each source, N = B·C.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emnat.config import Model
from emnat.models.layers import (
    DecoderLayer,
    Embedding,
    Encoder,
    Memory,
    TokenLoss,
    attention_bias,
    choose_attention,
    initialise,
    sequence_log_prob,
    without,
)
from emnat.text.subwords import PAD, SPECIAL

_FORBIDDEN = (slice(0, len(SPECIAL)),)  # they are the first of the vocabulary


class NAT(nn.Module):
    kind = "nat"

    def __init__(self, settings: Model, vocabulary: int, max_tokens: int) -> None:
        super().__init__()
        self.settings, self.vocabulary, self.max_tokens = settings, vocabulary, max_tokens
        self.embedding = Embedding(settings, vocabulary, positions=max_tokens)
        self.encoder = Encoder(settings, self.embedding)
        self.length_head = nn.Linear(settings.hidden, max_tokens)  # class i: a target of i + 1 tokens
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
        """Cross-entropy summed over all target tokens, plus the weighted length loss at the same scale."""
        memory = self.encode(source_BS, source_lengths_B)
        logits_BTV = self._logits(memory, target_lengths_B, target_BT.shape[1])
        tokens_loss: Tensor = self.token_loss(logits_BTV, target_BT, label_smoothing)
        length_loss = F.cross_entropy(self._length_logits(memory), target_lengths_B - 1)
        return tokens_loss + self.settings.length_loss * length_loss * target_lengths_B.sum()

    def log_prob(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_NT: Tensor, target_lengths_N: Tensor
    ) -> Tensor:
        """log p(y|x) of every row, the length's part too; N is a multiple of B (several targets of a source).

        All that the decoder is told of a target is its length, so targets of one source and one length share a pass.
        """
        memory = self.encode(source_BS, source_lengths_B)
        source_B1 = torch.arange(len(source_BS), device=source_BS.device)[:, None]
        pair_N = (source_B1 * self.max_tokens + target_lengths_N.view(len(source_BS), -1) - 1).flatten()
        pair_P, pass_N = torch.unique(pair_N, return_inverse=True)
        memory_P = memory.of(pair_P // self.max_tokens)
        logits_PTV = without(self._logits(memory_P, pair_P % self.max_tokens + 1, target_NT.shape[1]), _FORBIDDEN)
        tokens_N = sequence_log_prob(logits_PTV, pass_N, target_NT, target_lengths_N)
        return tokens_N + self.length_log_probs(memory).flatten()[pair_N]

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        memory: Memory = self.encoder(source_BS, source_lengths_B)
        return memory

    def length_log_probs(self, memory: Memory) -> Tensor:
        """(B, max_tokens): column i is the log-probability of a target of i + 1 tokens."""
        return self._length_logits(memory).log_softmax(-1)

    def propose(self, memory: Memory, lengths_BC: Tensor, size: int) -> Tensor:
        """One pass: scores of every label at every position of every length candidate, (B·C, size, V).

        They are logits: a log_softmax makes log-probabilities of them, which decoders do not need.
        """
        return without(self._logits(memory, lengths_BC.flatten(), size), _FORBIDDEN)

    def _logits(self, memory: Memory, lengths_N: Tensor, size: int) -> Tensor:
        padding_NT = torch.full((lengths_N.shape[0], size), PAD, device=lengths_N.device)
        x_NTD = self.embedding.target(padding_NT)
        bias_N11T = attention_bias(lengths_N, size, x_NTD)
        for layer in self.decoder:
            x_NTD = layer(x_NTD, bias_N11T, memory.states_BSD, memory.bias_B11S)
        return self.embedding.logits(self.norm(x_NTD))

    def _length_logits(self, memory: Memory) -> Tensor:
        states_BSD, lengths_B1 = memory.states_BSD.float(), memory.lengths_B[:, None]
        inside_BS = torch.arange(states_BSD.shape[1], device=lengths_B1.device) < lengths_B1
        mean_BD = (states_BSD * inside_BS[..., None]).sum(1) / lengths_B1
        with torch.autocast(mean_BD.device.type, enabled=False):
            return F.linear(mean_BD, self.length_head.weight.float(), self.length_head.bias.float())
