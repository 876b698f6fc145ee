"""The Transformer's parts, shared by teacher and student.

Shapes: B source sentences; N target rows, a multiple of B (N/B beams or candidates of each source stand next to each
other); S source positions; T target positions; D hidden; H heads; d = D/H; V vocabulary.
Several target rows share one encoded source: cross-attention folds them into the query axis and copies nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emnat.config import Model
from emnat.text.subwords import PAD

try:
    from emnat.models import attention_kernels, loss_kernels, sentence_attention
except ImportError:  # no Triton here
    attention_kernels = loss_kernels = sentence_attention = None  # type: ignore[assignment]

_FEW_STATES = 8  # up to so many, a CPU multiplies the vocabulary's matrix from the left up to three times as fast


@dataclass(frozen=True)
class Memory:
    """An encoded source."""

    states_BSD: Tensor
    lengths_B: Tensor
    bias_B11S: Tensor  # for attention: 0 where there is a token, -inf elsewhere

    def of(self, rows: Tensor) -> Memory:
        """That of some sources, in any order and number."""
        states, lengths = self.states_BSD[rows], self.lengths_B[rows]
        return Memory(states, lengths, attention_bias(lengths, states.shape[1], states))


@dataclass(frozen=True)
class Cache:
    """Keys and values of the target positions so far, in a buffer made once for the longest output."""

    keys_values_2NHTd: Tensor
    position_1: Tensor  # where the next ones go; on the device, so that nobody waits for it
    bias_111T: Tensor  # for attention: 0 up to that position
    rows_NT: Tensor | None  # in whose rows those of each row are (see attention_kernels.py); None: in its own


def reads_elsewhere(hidden: int, heads: int, device: torch.device) -> bool:
    """Whether a search may leave keys and values where they are when its rows change places."""
    size = hidden // heads
    return device.type == "cuda" and attention_kernels is not None and size >= 16 and size & (size - 1) == 0


def attention_bias(lengths_B: Tensor, size: int, weights: Tensor) -> Tensor:
    """(B, 1, 1, size): 0 inside each length, -inf outside, in the number format that attention will use."""
    device = lengths_B.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weights.dtype
    # Rows that start at multiples of 8 are what the GPU's attention reads without making a copy first. They are always
    # longer than `size`, so that what is compiled for one size serves all.
    outside_BX = torch.arange((size // 8 + 1) * 8, device=lengths_B.device) >= lengths_B[:, None]
    return torch.where(outside_BX, -torch.inf, 0.0).to(dtype)[:, None, None, :size]


class Embedding(nn.Module):
    """Token vectors, used for source, target and output alike, and the learned positions of both sides."""

    def __init__(self, settings: Model, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(vocabulary, settings.hidden) * settings.hidden**-0.5)
        self.source_positions = nn.Parameter(torch.randn(positions, settings.hidden))
        self.target_positions = nn.Parameter(torch.randn(positions, settings.hidden))
        self.scale = math.sqrt(settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)

    def source(self, tokens_BS: Tensor) -> Tensor:
        return self._embed(tokens_BS, self.source_positions[: tokens_BS.shape[1]])

    def target(self, tokens_NT: Tensor) -> Tensor:
        return self._embed(tokens_NT, self.target_positions[: tokens_NT.shape[1]])

    def target_at(self, tokens_N1: Tensor, position_1: Tensor) -> Tensor:
        return self._embed(tokens_N1, self.target_positions.index_select(0, position_1))

    def logits(self, states_NTD: Tensor) -> Tensor:
        if self.training:
            return F.linear(states_NTD, self.tokens)
        # Decoders compare logits: rounded to bf16 they would tie, and ties depend on the company of a sentence.
        in_bf16 = states_NTD.dtype is torch.bfloat16 or torch.is_autocast_enabled("cuda")
        with torch.autocast(states_NTD.device.type, enabled=False):
            if states_NTD.is_cuda and in_bf16:
                states_XD, tokens_VD = (part.to(torch.bfloat16) for part in (states_NTD.flatten(0, -2), self.tokens))
                logits_XV = torch.mm(states_XD, tokens_VD.T, out_dtype=torch.float32)
                return logits_XV.view(*states_NTD.shape[:-1], -1)
            if states_NTD.numel() <= _FEW_STATES * states_NTD.shape[-1] and not states_NTD.is_cuda:
                logits_VX = torch.mm(self.tokens.float(), states_NTD.float().flatten(0, -2).T)
                return logits_VX.T.contiguous().view(*states_NTD.shape[:-1], -1)
            return F.linear(states_NTD.float(), self.tokens.float())

    def _embed(self, tokens_NT: Tensor, positions_TD: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(F.embedding(tokens_NT, self.tokens) * self.scale + positions_TD)
        return embedded


class SelfAttention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x_NTD: Tensor, bias_N11T: Tensor | None) -> Tensor:
        """Without a bias, causal: padding at the end is then out of sight of every real position."""
        hidden = x_NTD.shape[-1]
        query, key_value = self.inputs(x_NTD).split((hidden, 2 * hidden), dim=-1)
        out: Tensor = self.output(attention(query, key_value, bias_N11T, self.heads, self.training))
        return out

    def step(self, x_N1D: Tensor, cache: Cache, seen: int) -> Tensor:
        """One more position; the first `seen` of the buffers hold it and all before it."""
        parts_3NH1d = self.inputs(x_N1D).view(len(x_N1D), 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        cache.keys_values_2NHTd.index_copy_(3, cache.position_1, parts_3NH1d[1:])
        if cache.rows_NT is not None:
            attended = attention_kernels.attend(
                parts_3NH1d[0], cache.keys_values_2NHTd, cache.rows_NT, cache.position_1
            )
        else:
            key, value = cache.keys_values_2NHTd[..., :seen, :]
            bias = cache.bias_111T[..., :seen]
            attended = F.scaled_dot_product_attention(parts_3NH1d[0], key, value, attn_mask=bias)
        return merge_heads(self.output, attended)


class CrossAttention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key_value = nn.Linear(hidden, 2 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def keys_and_values(self, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
        key, value = (split_heads(part, self.heads) for part in self.key_value(memory_BSD).chunk(2, dim=-1))
        return key, value

    def forward(self, x_NTD: Tensor, memory_BSD: Tensor, bias_B11S: Tensor) -> Tensor:
        query = self.query(x_NTD.reshape(memory_BSD.shape[0], -1, x_NTD.shape[-1]))
        attended = attention(query, self.key_value(memory_BSD), bias_B11S, self.heads, self.training)
        out: Tensor = self.output(attended).view_as(x_NTD)
        return out

    def step(self, x_N1D: Tensor, keys_values_BHSd: tuple[Tensor, Tensor], bias_B11S: Tensor) -> Tensor:
        """The same over keys and values that are known already."""
        key, value = keys_values_BHSd
        query = split_heads(self.query(x_N1D.reshape(key.shape[0], -1, x_N1D.shape[-1])), self.heads)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias_B11S)
        return merge_heads(self.output, attended).view_as(x_N1D)


class FeedForward(nn.Module):
    def __init__(self, hidden: int, filter_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, filter_size)
        self.outer = nn.Linear(filter_size, hidden)

    def forward(self, x_NTD: Tensor) -> Tensor:
        out: Tensor = self.outer(F.relu(self.inner(x_NTD)))
        return out


class Residual(nn.Module):
    """x + dropout(sublayer(norm(x))), or norm(x + dropout(sublayer(x))) with post-norm."""

    def __init__(self, settings: Model) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)
        self.before = settings.norm == "pre"

    def enter(self, x_NTD: Tensor) -> Tensor:
        entered: Tensor = self.norm(x_NTD) if self.before else x_NTD
        return entered

    def leave(self, x_NTD: Tensor, change_NTD: Tensor) -> Tensor:
        out: Tensor = x_NTD + self.dropout(change_NTD)
        return out if self.before else self.norm(out)


class EncoderLayer(nn.Module):
    def __init__(self, settings: Model) -> None:
        super().__init__()
        self.attention = SelfAttention(settings.hidden, settings.heads)
        self.feed_forward = FeedForward(settings.hidden, settings.filter)
        self.around_attention, self.around_feed_forward = Residual(settings), Residual(settings)

    def forward(self, x_BSD: Tensor, bias_B11S: Tensor) -> Tensor:
        x_BSD = self.around_attention.leave(x_BSD, self.attention(self.around_attention.enter(x_BSD), bias_B11S))
        return self.around_feed_forward.leave(x_BSD, self.feed_forward(self.around_feed_forward.enter(x_BSD)))


class DecoderLayer(nn.Module):
    def __init__(self, settings: Model) -> None:
        super().__init__()
        self.attention = SelfAttention(settings.hidden, settings.heads)
        self.cross = CrossAttention(settings.hidden, settings.heads)
        self.feed_forward = FeedForward(settings.hidden, settings.filter)
        self.around_attention, self.around_cross = Residual(settings), Residual(settings)
        self.around_feed_forward = Residual(settings)

    def forward(self, x_NTD: Tensor, bias_N11T: Tensor | None, memory_BSD: Tensor, bias_B11S: Tensor) -> Tensor:
        x_NTD = self.around_attention.leave(x_NTD, self.attention(self.around_attention.enter(x_NTD), bias_N11T))
        return self._after_cross(x_NTD, self.cross(self.around_cross.enter(x_NTD), memory_BSD, bias_B11S))

    def step(
        self,
        x_N1D: Tensor,
        cache: Cache,
        seen: int,
        keys_values_BHSd: tuple[Tensor, Tensor],
        bias_B11S: Tensor,
    ) -> Tensor:
        entered = self.around_attention.enter(x_N1D)
        x_N1D = self.around_attention.leave(x_N1D, self.attention.step(entered, cache, seen))
        return self._after_cross(x_N1D, self.cross.step(self.around_cross.enter(x_N1D), keys_values_BHSd, bias_B11S))

    def _after_cross(self, x_NTD: Tensor, attended_NTD: Tensor) -> Tensor:
        x_NTD = self.around_cross.leave(x_NTD, attended_NTD)
        return self.around_feed_forward.leave(x_NTD, self.feed_forward(self.around_feed_forward.enter(x_NTD)))


class TokenLoss(nn.Module):
    """Cross-entropy summed over all tokens but padding."""

    def forward(self, logits_NTV: Tensor, wanted_NT: Tensor, label_smoothing: float) -> Tensor:
        if logits_NTV.is_cuda and loss_kernels is not None:
            losses_X: Tensor
            losses_X, _ = loss_kernels.token_losses(logits_NTV.flatten(0, 1), wanted_NT.flatten(), label_smoothing)
            return losses_X.sum()
        return F.cross_entropy(
            logits_NTV.flatten(0, 1).float(),
            wanted_NT.flatten(),
            ignore_index=PAD,
            label_smoothing=label_smoothing,
            reduction="sum",
        )


class Encoder(nn.Module):
    def __init__(self, settings: Model, embedding: Embedding) -> None:
        super().__init__()
        self._embedding = [embedding]  # in a list, so that its weights are stored once, by the model
        self.layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.encoder_layers))
        self.norm = nn.LayerNorm(settings.hidden) if settings.norm == "pre" else nn.Identity()

    def forward(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        x_BSD = self._embedding[0].source(source_BS)
        bias_B11S = attention_bias(source_lengths_B, source_BS.shape[1], x_BSD)
        for layer in self.layers:
            x_BSD = layer(x_BSD, bias_B11S)
        return Memory(self.norm(x_BSD), source_lengths_B, bias_B11S)


def attention(query_NTD: Tensor, key_value_NSX: Tensor, bias_N11S: Tensor | None, heads: int, training: bool) -> Tensor:
    """(N, T, D), heads side by side; causal without a bias."""
    if training and sentence_attention is not None and sentence_attention.fits(query_NTD, key_value_NSX, heads):
        bias_NS = None if bias_N11S is None else bias_N11S[:, 0, 0]
        short: Tensor = sentence_attention.attend(query_NTD, key_value_NSX, bias_NS, bias_N11S is None, heads)
        return short
    query, key, value = (split_heads(part, heads) for part in (query_NTD, *key_value_NSX.chunk(2, dim=-1)))
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias_N11S, is_causal=bias_N11S is None)
    return attended.transpose(1, 2).flatten(2)


def split_heads(x_NTD: Tensor, heads: int) -> Tensor:
    rows, length, hidden = x_NTD.shape
    return x_NTD.view(rows, length, heads, hidden // heads).transpose(1, 2)


def merge_heads(output: nn.Linear, x_NHTd: Tensor) -> Tensor:
    merged: Tensor = output(x_NHTd.transpose(1, 2).flatten(2))
    return merged


def choose_attention() -> None:
    """Of PyTorch's kinds on a GPU, the memory-efficient one: for sentences it is the fastest (docs/log.md).

    This holds for the whole process, so only those who make a model have it, not those who import a decoder for theirs.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)


def initialise(module: nn.Module) -> None:
    """Xavier for every matrix; the embeddings have set themselves up."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)


def without(logits_NTV: Tensor, forbidden: tuple[slice, ...]) -> Tensor:
    """The logits in float32, -inf (in place) for symbols that cannot be output."""
    logits_NTV = logits_NTV.float()
    for symbols in forbidden:
        logits_NTV[..., symbols] = -torch.inf
    return logits_NTV


def sequence_log_prob(logits_PTV: Tensor, pass_N: Tensor, tokens_NT: Tensor, lengths_N: Tensor) -> Tensor:
    """Σ over each row's real positions of the log-probability of its token; pass_N is its own of P decoder passes."""
    position_T = torch.arange(tokens_NT.shape[1], device=tokens_NT.device)
    if logits_PTV.is_cuda and loss_kernels is not None:
        normalisers_NT = loss_kernels.log_normalisers(logits_PTV)[pass_N]
        log_probs_NT = logits_PTV[pass_N[:, None], position_T, tokens_NT] - normalisers_NT
    else:
        log_probs_NT = logits_PTV.log_softmax(-1)[pass_N[:, None], position_T, tokens_NT]
    return torch.where(position_T < lengths_N[:, None], log_probs_NT, 0.0).sum(-1)
