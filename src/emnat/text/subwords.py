"""One vocabulary for both languages, by sentencepiece.

Encoding is lossless for any line: no normalisation, unknown characters fall back to bytes, and the mark U+2581 that
sentencepiece uses for a space is itself written in bytes when it occurs in the text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import sentencepiece

from emnat.errors import UserError

PAD, BOS, EOS, UNK, CONCAT = range(5)
SPECIAL = (PAD, BOS, EOS, UNK)  # never part of a translation
_SPACE_MARK = "\u2581"


class Vocabulary:
    """Lines ↔ lists of ids."""

    def __init__(self, serialized: bytes, origin: str) -> None:
        self.serialized = serialized
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(serialized)
        except (RuntimeError, ValueError):
            raise UserError(f"{origin}: not a sentencepiece model, or damaged: restore the file.") from None
        if self._processor.id_to_piece(CONCAT) != "<concat>":
            raise UserError(f"{origin}: not a vocabulary made by emnat (it has no <concat> symbol).")
        self._has_bytes = self._processor.is_byte(self._processor.piece_to_id("<0xE2>"))
        self._space_mark_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE_MARK.encode()]

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, line: str) -> list[int]:
        # The space in front makes a word's piece the same at the start of a line and inside it.
        first, *rest = (" " + line).split(_SPACE_MARK) if self._has_bytes else [" " + line]
        ids: list[int] = self._processor.encode(first)
        for part in rest:
            ids += self._space_mark_ids
            ids += self._processor.encode(part)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        line = str(self._processor.decode(list(ids)))
        # A model can write bytes that are no UTF-8 or a newline; a line stays one line.
        return line.removeprefix(" ").replace("\n", " ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [str(self._processor.id_to_piece(int(token))) for token in ids]


def train_vocabulary(lines: Callable[[], Iterator[str]], kind: Literal["bpe", "word"], size: int, seed: int) -> bytes:
    """A serialized sentencepiece model of at most `size` pieces; `lines` gives the processed text, from its start."""
    settings: dict[str, Any] = {
        "model_type": kind,
        "pad_id": PAD,
        "bos_id": BOS,
        "eos_id": EOS,
        "unk_id": UNK,
        "control_symbols": ["<concat>"],  # a control symbol is never read from text, even if someone writes it there
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "character_coverage": 1.0,
        "byte_fallback": kind == "bpe",
        "input_sentence_size": 2_000_000,
        "shuffle_input_sentence": True,
        "num_threads": 1,  # more threads would make the result depend on their timing
        "minloglevel": 2,
        "max_sentence_length": 1_000_000,
    }
    sentencepiece.set_random_generator_seed(seed % 2**31)
    try:
        return _train(lines(), size, settings)
    except RuntimeError as error:
        needed = re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error))
        if needed:
            raise UserError(f"text.vocabulary = {size} is too small: this corpus needs at least {needed[1]}.") from None
        possible = re.search(r"<= (\d+)", str(error))
        if possible is None:
            raise UserError(f"the vocabulary cannot be trained: {error}.") from None
        return _train(lines(), int(possible[1]), settings)  # a corpus too small for so many pieces gets what it has


def _train(lines: Iterator[str], size: int, settings: dict[str, Any]) -> bytes:
    model = io.BytesIO()
    spaced = (" " + line for line in lines)  # as in Vocabulary.encode
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=spaced, model_writer=model, vocab_size=size, **settings)
    return model.getvalue()
