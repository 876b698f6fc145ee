"""Parallel text from files: aligned plain text or campaign formats (markup.py), TSV or JSONL, each also as .gz or .xz.

A line ends at a newline and nowhere else (U+2028 and its like belong to the text); every problem names file and line.
"""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from emnat.errors import UserError
from emnat.text.markup import plain_lines

Pair = tuple[str, str]
_OTHER_PACKINGS = (".bz2", ".zst", ".zip", ".7z", ".tar", ".tgz", ".tar.gz", ".tar.xz")
_AT_ONCE = 1 << 20  # bytes of an .xz file, packed or not, in memory


def read_pairs(files: Sequence[str] | Sequence[Sequence[str]]) -> Iterator[Pair]:
    """Pairs from [source, target], or from one .tsv or .jsonl file; or from several of these, one after the other."""
    several = bool(files) and not isinstance(files[0], str)
    for corpus in cast(Sequence[Sequence[str]], files if several else [files]):
        if len(corpus) == 2 and any(_is_of_pairs(path) for path in corpus):
            raise UserError(
                f"{corpus[0]}, {corpus[1]}: files of pairs stand alone, and several in lists of their own: "
                '[["a.tsv"], ["b.tsv"]].'
            )
        if len(corpus) == 2:
            yield from _read_aligned(corpus[0], corpus[1])
        elif len(corpus) == 1:
            yield from map(_line_parser(corpus[0]), itertools.count(1), read_lines(corpus[0]))
        else:
            raise UserError(
                f"a corpus is two aligned files or one .tsv or .jsonl file; {len(corpus)} files were given."
            )


def read_lines(path: str | Path) -> Iterator[str]:
    try:
        with Path(path).open("rb") as file:
            suffix = Path(path).suffix
            if str(path).endswith(_OTHER_PACKINGS):
                raise UserError(f"{path}: of packed files only .gz and .xz are read: unpack it.")
            plain_or_gz: Iterable[bytes] = gzip.GzipFile(fileobj=file) if suffix == ".gz" else file
            stream = _lines_of_xz(file) if suffix == ".xz" else plain_or_gz
            yield from plain_lines(decode_lines(stream, str(path)), path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be decompressed ({error}): fetch or pack the file again.") from None
    except (IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines without their ends; a byte-order mark before the first is dropped."""
    for number, raw in enumerate(stream, 1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: not valid UTF-8 (byte {error.start + 1} of the line): "
                "convert the file, for example with iconv."
            ) from None
        if number == 1:
            line = line.removeprefix("\ufeff")
        yield line.removesuffix("\n").removesuffix("\r")


def _read_aligned(source: str, target: str) -> Iterator[Pair]:
    sources, targets = read_lines(source), read_lines(target)
    for number in itertools.count():
        source_line, target_line = next(sources, None), next(targets, None)
        if source_line is None and target_line is None:
            return
        if source_line is None or target_line is None:
            source_count = number + (source_line is not None) + sum(1 for _ in sources)
            target_count = number + (target_line is not None) + sum(1 for _ in targets)
            raise UserError(
                f"{source} has {source_count} lines but {target} has {target_count}: "
                "parallel files need one translation per line."
            )
        yield source_line, target_line


def _line_parser(path: str) -> Callable[[int, str], Pair]:
    suffixes = Path(path).suffixes
    if ".tsv" in suffixes:
        return lambda number, line: parse_tsv(line, f"{path}, line {number}")
    if ".jsonl" in suffixes:
        return lambda number, line: _parse_json(line, f"{path}, line {number}")
    raise UserError(f"{path}: a single corpus file must be .tsv or .jsonl (or give two aligned files).")


def parse_tsv(line: str, place: str) -> Pair:
    fields = line.split("\t")
    if len(fields) != 2:
        raise UserError(f"{place}: {len(fields)} tab-separated fields, expected 2 (source and target).")
    return fields[0], fields[1]


def _parse_json(line: str, place: str) -> Pair:
    try:
        record = json.loads(line)
        source, target = record["source"], record["target"]
        (source + target).encode()  # JSON can spell lone surrogates, which are no text
    except (ValueError, KeyError, TypeError, RecursionError):
        source = target = None
    if not isinstance(source, str) or not isinstance(target, str):
        raise UserError(f'{place}: expected an object like {{"source": "...", "target": "..."}}.')
    # A sentence is a line: breaks inside a JSON string would tear later line-aligned files apart.
    return source.replace("\n", " "), target.replace("\n", " ")


def _is_of_pairs(path: str) -> bool:
    return bool({".tsv", ".jsonl"} & set(Path(path).suffixes))


def _lines_of_xz(file: BinaryIO) -> Iterator[bytes]:
    """Like lzma.open, which takes whatever cannot be unpacked after a first whole stream for the end of the file."""
    unpacker, packed, rest, whole = lzma.LZMADecompressor(), b"", b"", False
    while True:
        packed = packed.lstrip(b"\0") if whole else packed  # between streams there may be padding
        if not packed and unpacker.needs_input:
            packed = file.read(_AT_ONCE)
            if not packed:
                break
            continue
        lines = (rest + unpacker.decompress(packed, _AT_ONCE)).split(b"\n")
        rest, packed, whole = lines.pop(), unpacker.unused_data, unpacker.eof
        unpacker = lzma.LZMADecompressor() if whole else unpacker
        yield from (line + b"\n" for line in lines)
    if not whole:
        raise EOFError("it ends in the middle")
    if rest:
        yield rest
