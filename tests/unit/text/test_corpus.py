from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from emnat.errors import UserError
from emnat.text import decode_lines, read_lines, read_pairs


def write(path: Path, content: bytes) -> str:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as file:
        file.write(content)
    return str(path)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_plain_tsv_and_jsonl_agree(tmp_path: Path, suffix: str) -> None:
    pairs = [("ein Haus", "a house"), ("", ""), ("Übung\u2028macht", "prac\u0085tice")]
    source = write(tmp_path / f"a.de{suffix}", "".join(s + "\n" for s, _ in pairs).encode())
    target = write(tmp_path / f"a.en{suffix}", "".join(t + "\n" for _, t in pairs).encode())
    tsv = write(tmp_path / f"a.tsv{suffix}", "".join(f"{s}\t{t}\n" for s, t in pairs).encode())
    lines = (json.dumps({"source": s, "target": t}) for s, t in pairs)
    jsonl = write(tmp_path / f"a.jsonl{suffix}", "\n".join(lines).encode())
    assert list(read_pairs([source, target])) == list(read_pairs([tsv])) == list(read_pairs([jsonl])) == pairs


def test_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nlast")
    assert list(read_lines(path)) == ["one", "two", "", "last"]


def test_unequal_counts_name_both(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.de", b"1\n2\n3\n4\n5\n"), write(tmp_path / "a.en", b"1\n2\n3\n")
    with pytest.raises(UserError, match=r"a\.de has 5 lines but .*a\.en has 3"):
        list(read_pairs([source, target]))
    with pytest.raises(UserError, match=r"a\.en has 3 lines but .*a\.de has 5"):
        list(read_pairs([target, source]))


def test_invalid_utf8_names_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.de", b"fine\nM\xfcnchen\n")
    with pytest.raises(UserError, match=r"bad\.de, line 2: not valid UTF-8"):
        list(read_lines(path))
    with pytest.raises(UserError, match="standard input, line 1"):
        list(decode_lines([b"\xed\xa0\x80"], "standard input"))  # a lone surrogate


def test_missing_file_and_broken_archive(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.de: no such file"):
        list(read_lines(tmp_path / "nowhere.de"))
    for name in ("broken.gz", "broken.xz"):
        (tmp_path / name).write_bytes(b"not an archive")
        with pytest.raises(UserError, match="cannot be decompressed"):
            list(read_lines(tmp_path / name))
    whole = gzip.compress(b"line\n" * 1000)
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be decompressed"):
        list(read_lines(tmp_path / "cut.gz"))
    with pytest.raises(UserError, match="cannot be read"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("line", ["no tab", "a\tb\tc"])
def test_tsv_needs_two_fields(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "a.tsv", f"x\ty\n{line}\n".encode())
    with pytest.raises(UserError, match=r"a\.tsv, line 2: . tab-separated fields"):
        list(read_pairs([path]))


NO_RECORDS = ["{", "[]", '{"source": "x"}', '{"source": 1, "target": "y"}', "[" * 100_000]
NO_RECORDS += [r'{"source": "\ud800", "target": ""}']  # a lone surrogate is no text


@pytest.mark.parametrize("line", NO_RECORDS)
def test_jsonl_needs_source_and_target(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "a.jsonl", line.encode())
    with pytest.raises(UserError, match=r"a\.jsonl, line 1: expected an object"):
        list(read_pairs([path]))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must be \.tsv or \.jsonl"):
        list(read_pairs([write(tmp_path / "a.txt", b"x\n")]))
    with pytest.raises(UserError, match="3 files were given"):
        list(read_pairs(["a", "b", "c"]))


@pytest.mark.parametrize("name", ["train.de.bz2", "train.tar.gz"])
def test_other_packings_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, gzip.compress(b"a\n"))
    with pytest.raises(UserError, match=r"only \.gz and \.xz are read: unpack it"):
        list(read_lines(path))


def test_xz_files_of_several_parts_are_read_to_their_end(tmp_path: Path) -> None:
    """Python's own reader takes damage after the first part for the end of the file."""
    path, first, second = tmp_path / "x.xz", lzma.compress(b"a\nb\n"), lzma.compress(b"c\nd")
    for content in (first + second, first + bytes(8) + second + bytes(4), first + bytes(1 << 20) + second):
        path.write_bytes(content)
        assert list(read_lines(path)) == ["a", "b", "c", "d"]
    path.write_bytes(lzma.compress(b"x\n" * 2_000_000))
    assert sum(1 for _ in read_lines(path)) == 2_000_000
    for content in (first + b"junk", first + second[:20], first[:-5], b""):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot be decompressed"):
            list(read_lines(path))


def test_two_files_of_pairs_are_not_two_sides(tmp_path: Path) -> None:
    for name in ("a.tsv", "b.tsv.gz"):
        (tmp_path / name).write_text("x\ty\n")
    with pytest.raises(UserError, match="stand alone"):
        list(read_pairs([str(tmp_path / "a.tsv"), str(tmp_path / "b.tsv.gz")]))
