"""The same sentence, whatever its company and whichever decoder; and what happens to odd lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from emnat.config import Decode, Model, NarDecoder, Text
from emnat.data.grammar import draw_pairs
from emnat.decoding import Translator
from emnat.errors import UserError
from emnat.models import NAT, Teacher
from emnat.text import TextPipeline, Vocabulary, train_vocabulary

PAIRS = draw_pairs(60, seed=3)
SERIALIZED = train_vocabulary(lambda: (line for pair in PAIRS for line in pair), "bpe", 600, seed=1)
SETTINGS = Model(encoder_layers=2, decoder_layers=2, hidden=32, filter=64, heads=4)
LINES = [source for source, _ in PAIRS]


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def make(kind: type[Teacher] | type[NAT], seed: int, referee: bool = True, device: str = "cpu") -> Translator:
    torch.manual_seed(seed)
    vocabulary = Vocabulary(SERIALIZED, "test")
    model = kind(SETTINGS, len(vocabulary), 40).eval().to(device)
    judge = Teacher(SETTINGS, len(vocabulary), 40).eval().to(device) if referee else None
    pipeline = TextPipeline(Text(max_tokens=40), vocabulary)
    return Translator(model, pipeline, torch.device(device), judge, Decode(), "float32")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("candidates", [1, 9])
@pytest.mark.parametrize("decoder", ["argmax", "dedup", "odd"])
def test_students_alone_and_in_any_batch(seed: int, decoder: NarDecoder, candidates: int, device: str) -> None:
    translator = make(NAT, seed, device=device)
    together = translator.translate(LINES, decoder=decoder, length_candidates=candidates)
    translator = replace(translator, settings=Decode(tokens=1))  # one sentence a batch
    assert translator.translate(LINES, decoder=decoder, length_candidates=candidates) == together
    translator = replace(translator, settings=Decode(tokens=200))
    assert translator.translate(LINES[::-1], decoder=decoder, length_candidates=candidates) == together[::-1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beam", [1, 4])
def test_teachers_alone_and_in_any_batch(seed: int, beam: int, device: str) -> None:
    translator = make(Teacher, seed, device=device)
    together = translator.translate(LINES, beam=beam)
    translator = replace(translator, settings=Decode(tokens=1))
    assert translator.translate(LINES, beam=beam) == together


def test_what_python_users_can_get_wrong(seed: int) -> None:
    translator = make(NAT, seed)
    for lines, settings in (
        ("Der Arzt", {}),
        (LINES, {"decoder": "ood"}),
        (LINES, {"length_candidates": 0}),
        (LINES, {"beam": 0}),
        (LINES, {"beam": 4}),
        (LINES, {"length_candidates": 2.5}),
        (LINES, {"length_candidates": 10**6}),
        ([None], {}),
        (["\ud800"], {}),
    ):
        with pytest.raises(UserError):
            translator.translate(lines, **settings)  # type: ignore[arg-type]
    for settings in ({"decoder": "odd"}, {"length_candidates": 9}, {"rescore": True}):
        with pytest.raises(UserError, match="a teacher"):
            make(Teacher, seed).translate(LINES, **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="beam = 0"):
        make(Teacher, seed).translate(LINES, beam=0)
    assert translator.translate(line for line in LINES) == translator.translate(LINES)


def test_odd_output_has_no_repeats_and_the_predicted_length(seed: int) -> None:
    translator = make(NAT, seed)
    sources = [np.array(translator.pipeline.encode_source(line)) for line in LINES]
    argmax = translator.translate_ids(sources, decoder="argmax")
    odd = translator.translate_ids(sources, decoder="odd")
    assert [len(ids) for ids in odd] == [len(ids) for ids in argmax]
    assert all(a != b for ids in odd for a, b in pairwise(ids))
    assert any(a == b for ids in argmax for a, b in pairwise(ids))  # so there was something to do


def test_rescoring_takes_the_candidate_the_referee_likes_best(seed: int) -> None:
    translator = make(NAT, seed)
    source = torch.tensor([translator.pipeline.encode_source(LINES[0])])
    length = torch.tensor([source.shape[1]])
    with torch.inference_mode():
        memory = translator.model.encode(source, length)
        best = int(translator.model.length_log_probs(memory).argmax()) + 1
        scored = {}
        for size in range(max(1, best - 4), min(40, best + 4) + 1):
            (ids,) = translator.translate_ids([source[0].numpy()], decoder="odd", exact_lengths=[size])
            log_prob = translator.referee.log_prob(source, length, torch.tensor([ids]), torch.tensor([size]))
            scored[tuple(ids)] = log_prob.item() / ((5 + size + 1) / 6) ** 0.6
    (chosen,) = translator.translate_ids([source[0].numpy()], decoder="odd", length_candidates=9)
    assert scored[tuple(chosen)] == pytest.approx(max(scored.values()), rel=1e-5)


def test_line_in_line_out(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    translator = make(NAT, seed)
    lines = ["", "Der Arzt hat gelacht.", "   ", "wort " * 500, "\u2028", "Ja."]
    with caplog.at_level(logging.WARNING, "emnat"):
        outputs = translator.translate(lines)
    assert len(outputs) == len(lines)
    assert outputs[0] == outputs[2] == outputs[4] == ""
    assert outputs[1]
    assert outputs[3]
    assert ["line 4" in record.message and "cut off" in record.message for record in caplog.records] == [True]


def test_stream_writes_before_the_input_ends(seed: int) -> None:
    translator = make(NAT, seed)
    taken = []

    def endless() -> Iterator[str]:
        for number in range(10**9):
            taken.append(number)
            yield LINES[number % len(LINES)]

    stream = translator.stream(endless(), block=10)
    first = [next(stream) for _ in range(25)]
    assert len(taken) == 30  # three blocks, no more
    assert first == translator.translate(LINES[:25])


def test_rescoring_needs_a_referee(seed: int) -> None:
    translator = make(NAT, seed, referee=False)
    with pytest.raises(UserError, match="no referee"):
        translator.translate(LINES[:1], length_candidates=3, rescore=True)
    assert len(translator.translate(LINES[:2], length_candidates=3)) == 2
