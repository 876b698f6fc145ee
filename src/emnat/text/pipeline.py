"""The whole way of a line: tokenise, lower-case, subwords, <concat>; and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emnat.artifacts import inside
from emnat.config import Text
from emnat.errors import UserError
from emnat.text.concat import insert_concat, remove_concat
from emnat.text.moses import Moses
from emnat.text.subwords import CONCAT, Vocabulary

VOCABULARY_FILE = "tokenizer.model"


class LineProcessor:
    """What happens to a line before subwords: needs no vocabulary, so it can run before one exists."""

    def __init__(self, settings: Text) -> None:
        self._lowercase = settings.lowercase
        self._source = Moses(settings.source_language, settings.normalise) if settings.moses else None
        self._target = Moses(settings.target_language, settings.normalise) if settings.moses else None

    def source(self, line: str) -> str:
        return self._process(line, self._source)

    def target(self, line: str) -> str:
        return self._process(line, self._target)

    def detokenise_target(self, line: str) -> str:
        return self._target.join(line) if self._target else line

    def _process(self, line: str, moses: Moses | None) -> str:
        tokens = moses.split(line) if moses else line
        return tokens.lower() if self._lowercase else tokens


class TextPipeline:
    """Lines to ids for a model, and a model's ids to lines."""

    def __init__(self, settings: Text, vocabulary: Vocabulary) -> None:
        self.settings = settings
        self.vocabulary = vocabulary
        self.lines = LineProcessor(settings)

    def encode_source(self, line: str) -> list[int]:
        return self.vocabulary.encode(self.lines.source(line)) if line.strip() else []

    def encode_target(self, line: str) -> list[int]:
        return self.encode_processed_target(self.lines.target(line)) if line.strip() else []

    def encode_processed_target(self, line: str) -> list[int]:
        ids = self.vocabulary.encode(line)
        return insert_concat(ids, CONCAT) if self.settings.concat else ids

    def decode_target(self, ids: Sequence[int]) -> str:
        """Tokenised text: what tokenised BLEU compares."""
        return self.vocabulary.decode(remove_concat(ids, CONCAT))

    def detokenise(self, line: str) -> str:
        return self.lines.detokenise_target(line)


def load_pipeline(directory: Path, settings: Text) -> TextPipeline:
    path = inside(directory, VOCABULARY_FILE)
    try:
        serialized = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: missing; the model directory is incomplete.") from None
    return TextPipeline(settings, Vocabulary(serialized, str(path)))
