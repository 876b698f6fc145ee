"""A converted teacher against our own search."""

from __future__ import annotations

from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch

from emnat.config import Decode, Model
from emnat.decoding.engine import Engine
from emnat.errors import UserError
from emnat.export.ctranslate import BEGIN, END, UNKNOWN, save_for_ctranslate2
from emnat.models import Teacher

SIZES = {"encoder_layers": 2, "decoder_layers": 2, "hidden": 64, "filter": 128, "heads": 4}
VOCABULARY = 60
SYMBOLS = ["<pad>", BEGIN, END, UNKNOWN, *(f"t{i}" for i in range(4, VOCABULARY))]


def test_greedy_outputs_are_ours(tmp_path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    teacher = Teacher(Model.model_validate(SIZES), VOCABULARY, 40).eval()
    with torch.no_grad():  # clear preferences, so that rounding decides nothing
        teacher.embedding.tokens *= 4
    save_for_ctranslate2(teacher, SYMBOLS, tmp_path / "ct2")
    random = np.random.default_rng(seed)
    sources = [random.integers(5, VOCABULARY, size) for size in (1, 5, 9, 12, 20)]
    engine = Engine(teacher, None, torch.device("cpu"), "float32", Decode())
    ours = engine.search_best(sources, 1, np.full(5, 8))
    found = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu").translate_batch(
        [[f"t{i}" for i in ids] for ids in sources],
        beam_size=1,
        min_decoding_length=8,
        max_decoding_length=8,
        suppress_sequences=[["<pad>"], [BEGIN], [UNKNOWN]],
    )
    assert [[SYMBOLS.index(symbol) for symbol in result.hypotheses[0]] for result in found] == ours


def test_post_norm_is_refused(tmp_path: Path) -> None:
    teacher = Teacher(Model.model_validate(SIZES | {"norm": "post"}), VOCABULARY, 40)
    with pytest.raises(UserError, match="norm"):
        save_for_ctranslate2(teacher, SYMBOLS, tmp_path / "ct2")
