"""A small corpus with its config, and a whole run on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from emnat.data import grammar
from tests.conftest import Emnat

CONFIG = """
run = "run"
seed = 3
device = "cpu"
[data]
train = ["corpus/train.de", "corpus/train.en"]
valid = ["corpus/valid.de", "corpus/valid.en"]
test = ["corpus/test.de", "corpus/test.en"]
[text]
moses = true
vocabulary = 700
max_tokens = 50
[teacher]
encoder_layers = 1
decoder_layers = 1
hidden = 48
filter = 96
heads = 4
dropout = 0.0
[teacher.training]
steps = 120
tokens = 800
learning_rate = 8e-3
warmup = 40
validate_every = 40
validation_sentences = 20
average = 2
[student]
encoder_layers = 1
decoder_layers = 1
hidden = 48
filter = 96
heads = 4
dropout = 0.0
[student.training]
steps = 120
tokens = 800
learning_rate = 8e-3
warmup = 40
validate_every = 40
validation_sentences = 20
average = 2
[em]
iterations = 2
distill_beam = 3
propose_beam = 3
[evaluate]
latency_sentences = 2
latency_runs = 2
"""


def write_workplace(folder: Path) -> Path:
    """A folder with a small corpus and a config for it."""
    folder.mkdir(exist_ok=True)
    grammar.write_corpus(folder / "corpus", train=300, valid=30, test=30, seed=3)
    (folder / "config.toml").write_text(CONFIG)
    return folder


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    return write_workplace(tmp_path / "work")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, emnat: Emnat) -> Path:
    """A workplace with a whole run of two EM iterations in it. Only read it."""
    folder = write_workplace(tmp_path_factory.mktemp("finished") / "work")
    emnat("train", "config.toml", cwd=folder)
    return folder
