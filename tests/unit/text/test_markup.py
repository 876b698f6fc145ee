"""The campaigns' formats, on small stand-ins."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from emnat.errors import UserError
from emnat.text import read_lines, read_pairs

SGM = """<srcset setid="newstest2014" srclang="any">
<doc sysid="ref" docid="1" genre="news" origlang="en">
<p>
<seg id="1">Tom &amp; Jerry said:&#10;&quot;No&quot;.</seg>
<seg id="2"></seg> <SEG ID="3"> Two on a line </SEG>
</p>
</doc>
</srcset>
"""
TAGS = """<url>http://www.ted.com/talks/1</url>
<keywords>talks, a</keywords>
<speaker>A. Person</speaker>
<talkid>1</talkid>
<title>A Person: On things</title>
<description>About things.</description>
First sentence .
 1 < 2 and <b>bold</b>
<reviewer href="x">R</reviewer>
<translator href="y">T</translator>
"""


def test_segments(tmp_path: Path) -> None:
    (tmp_path / "x.sgm").write_text(SGM)
    assert list(read_lines(tmp_path / "x.sgm")) == ['Tom & Jerry said: "No".', "", "Two on a line"]
    (tmp_path / "y.de.xml.gz").write_bytes(gzip.compress(SGM.encode()))
    assert len(list(read_lines(tmp_path / "y.de.xml.gz"))) == 3


def test_apostrophes_of_the_iwslt_sets(tmp_path: Path) -> None:
    """Plain ones, as in the data that are usually compared on; what is not IWSLT's stays as it is."""
    for name, wanted in (("IWSLT14.TED.tst2010.de-en.en.xml", "I don't"), ("other.xml", "I don’t")):
        (tmp_path / name).write_text('<seg id="1"> I don’t </seg>\n', encoding="utf-8")
        assert list(read_lines(tmp_path / name)) == [wanted]


def test_tagged_text(tmp_path: Path) -> None:
    (tmp_path / "train.tags.de-en.en").write_text(TAGS)
    assert list(read_lines(tmp_path / "train.tags.de-en.en")) == [
        "A Person: On things",
        "About things.",
        "First sentence .",
        "1 < 2 and <b>bold</b>",
    ]


def test_markup_without_segments_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text("just text\n")
    with pytest.raises(UserError, match="no <seg> element"):
        list(read_lines(tmp_path / "x.xml"))


def test_several_corpora_follow_each_other(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    (tmp_path / "e.tsv").write_text("e\tf\n")
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    pairs = list(read_pairs([[a, b], [c, d], [str(tmp_path / "e.tsv")]]))
    assert pairs == [("a1", "b1"), ("a2", "b2"), ("c1", "d1"), ("c2", "d2"), ("e", "f")]


def test_segments_over_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.sgm"
    path.write_text('<seg id="1">one\ntwo</seg> <seg\nid="2">three</seg>\n<seg>four</seg>\n')
    assert list(read_lines(path)) == ["one two", "three", "four"]
    never = "<seg>one\n" + "and on\n" * 1_000_000
    for text in ("<seg>one</seg>\n<seg>two\n", "<seg>one\n<seg>two</seg>\n", "<seg>one <seg>two</seg>\n", never):
        path.write_text(text)
        with pytest.raises(UserError, match="without an end"):
            list(read_lines(path))
