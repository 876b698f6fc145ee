"""Round trips are exact for any line."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emnat.config import Text
from emnat.data.grammar import draw_pairs
from emnat.errors import UserError
from emnat.text import TextPipeline, Vocabulary, train_vocabulary
from emnat.text.concat import insert_concat, remove_concat
from emnat.text.moses import Moses
from emnat.text.subwords import CONCAT, SPECIAL

SENTENCES = [line for pair in draw_pairs(300, seed=1) for line in pair]
SERIALIZED = train_vocabulary(lambda: iter(SENTENCES), "bpe", 600, seed=1)
VOCABULARY = Vocabulary(SERIALIZED, "test")
any_line = st.text(st.characters(codec="utf-8", exclude_characters="\n"))


@settings(max_examples=500)
@given(any_line | st.text(" ▁abe<>\x00\t\r") | st.sampled_from(SENTENCES))
def test_encoding_is_lossless(line: str) -> None:
    ids = VOCABULARY.encode(line)
    assert VOCABULARY.decode(ids) == line
    assert not set(ids) & {*SPECIAL, CONCAT}


@settings(max_examples=500)
@given(any_line | st.text("a b", max_size=12), st.booleans())
def test_pipeline_is_lossless_with_concat(line: str, concat: bool) -> None:
    pipeline = TextPipeline(Text(concat=concat), VOCABULARY)
    ids = pipeline.encode_processed_target(line)
    assert pipeline.decode_target(ids) == line
    if concat:
        assert all(a != b for a, b in pairwise(ids))


@given(st.lists(st.integers(5, 7)))
def test_concat_round_trip(ids: list[int]) -> None:
    separated = insert_concat(ids, CONCAT)
    assert remove_concat(separated, CONCAT) == ids
    assert all(a != b for a, b in pairwise(separated))


def test_special_symbols_in_text_are_text() -> None:
    for line in ("<concat>", "<s> </s>", "<pad><unk>"):
        assert VOCABULARY.decode(VOCABULARY.encode(line)) == line
        assert not set(VOCABULARY.encode(line)) & {*SPECIAL, CONCAT}


def test_decoding_stays_on_one_line() -> None:
    newline = next(i for i in range(len(VOCABULARY)) if VOCABULARY.pieces([i]) == ["<0x0A>"])
    assert "\n" not in VOCABULARY.decode([newline, newline])


def test_training_is_deterministic() -> None:
    assert train_vocabulary(lambda: iter(SENTENCES), "bpe", 600, seed=1) == SERIALIZED


def test_small_corpora_get_what_they_have_and_small_sizes_are_refused() -> None:
    assert len(Vocabulary(train_vocabulary(lambda: iter(SENTENCES[:10]), "bpe", 30_000, 1), "x")) < 1_000
    with pytest.raises(UserError, match=r"text\.vocabulary = 50 is too small"):
        train_vocabulary(lambda: iter(SENTENCES), "bpe", 50, 1)


def test_words_are_whole_for_synthetic_corpora() -> None:
    vocabulary = Vocabulary(train_vocabulary(lambda: iter(["1 2 3 4 5 0"] * 5), "word", 20, 1), "x")
    assert len(vocabulary.encode("2 1 5 0")) == 4
    assert vocabulary.decode(vocabulary.encode("2 1 5 0")) == "2 1 5 0"


def test_files_that_are_no_vocabulary() -> None:
    for junk in (b"", b"junk", SERIALIZED[: len(SERIALIZED) // 2]):
        with pytest.raises(UserError, match=r"tokenizer\.model"):
            Vocabulary(junk, "tokenizer.model")


def test_moses_splits_and_joins() -> None:
    pipeline = TextPipeline(Text(moses=True, lowercase=True), VOCABULARY)
    processed = pipeline.lines.target("The boy's dog didn't bark, did it?")
    assert processed == "the boy 's dog didn 't bark , did it ?"
    assert pipeline.detokenise(processed) == "the boy's dog didn't bark, did it?"
    assert pipeline.encode_source("   ") == []


def test_a_long_row_of_dots_takes_no_long_time() -> None:
    """Not the square of its length, which was minutes for what can stand in a table of contents."""
    started = time.monotonic()
    for dots in ("." * 200_000, "…" * 70_000):
        text = Moses("de", normalise=True).split(f"Inhalt {dots} 7")
        assert text.replace(" ", "") == "Inhalt" + dots.replace("…", "...") + "7"
    assert time.monotonic() - started < 30
