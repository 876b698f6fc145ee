"""Lines of the evaluation campaigns' own formats: SGML and XML with <seg> elements, and IWSLT's tagged text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from emnat.errors import UserError

_OPEN = re.compile(r"<seg\b", re.IGNORECASE)
_LONGEST = 20_000  # letters of a segment: one that is never closed is not looked for to the end of the file
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE)
_KEPT_TAG = re.compile(r"</?(?:title|description)>", re.IGNORECASE)  # the text inside is spoken, or at least translated
_DROPPED_LINE = re.compile(r"\s*<(?:url|keywords|speaker|talkid|reviewer|translator|doc|/doc)\b", re.IGNORECASE)


def plain_lines(lines: Iterable[str], path: str | Path) -> Iterator[str]:
    """The sentences of a file, by its name: *.sgm and *.xml, train.tags.*, or plain text (every line is one)."""
    name = Path(path).name
    if {".sgm", ".xml"} & set(Path(path).suffixes):
        segments = _segments(lines, path)
        # The usual IWSLT14 data have plain apostrophes in these sets; in the training text they are as they were.
        return (text.replace("’", "'") for text in segments) if name.startswith("IWSLT") else segments
    if name.startswith("train.tags."):
        return _untagged(lines)
    return iter(lines)


def _segments(lines: Iterable[str], path: str | Path) -> Iterator[str]:
    found, begun = False, ""
    for line in lines:
        text, end = begun + line, 0
        for segment in _SEGMENT.finditer(text):
            found, end = True, segment.end()
            if _OPEN.search(segment[1]):  # it would swallow the next one, and tear the alignment
                raise _endless(path, segment[0])
            yield html.unescape(segment[1]).replace("\n", " ").strip()  # &#10; is a line break: a sentence has none
        begun = text[end:] + " " if _OPEN.search(text, end) else ""  # it goes on in the next line
        if len(begun) > _LONGEST:
            break
    if begun:
        raise _endless(path, begun)
    if not found:
        raise UserError(f"{path}: no <seg> element on any line: rename the file if it is plain text.")


def _endless(path: str | Path, text: str) -> UserError:
    return UserError(f"{path}: a <seg> element without an end: {text.strip()[:40]!r}.")


def _untagged(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not _DROPPED_LINE.match(line):
            yield _KEPT_TAG.sub("", line).strip()
