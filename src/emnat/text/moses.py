"""Moses normalisation and tokenisation through sacremoses, and the way back."""

from __future__ import annotations

import re

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

# sacremoses tries every start of a run of dots, the square of its length; an ellipsis becomes three of them.
_MANY_DOTS = re.compile(r"[.…]{200}(?=[.…])")


class Moses:
    """One language's tokeniser: `split` makes tokens separated by spaces, `join` undoes it as well as it can be."""

    def __init__(self, language: str, normalise: bool) -> None:
        self._normalizer = MosesPunctNormalizer(lang=language) if normalise else None
        self._tokenizer = MosesTokenizer(lang=language)
        self._detokenizer = MosesDetokenizer(lang=language)

    def split(self, line: str) -> str:
        line = _MANY_DOTS.sub(r"\g<0> ", line)
        if self._normalizer:
            line = self._normalizer.normalize(line)
        return str(self._tokenizer.tokenize(line, escape=False, return_str=True))

    def join(self, line: str) -> str:
        return str(self._detokenizer.detokenize(line.split(" "), unescape=False))
