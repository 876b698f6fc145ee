"""The corpora the project makes itself."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from emnat.config import Data
from emnat.data import grammar, synthetic
from emnat.data.prepare import reason_to_drop
from emnat.errors import UserError


def test_embedded_sets_share_no_source(tmp_path: Path, seed: int) -> None:
    grammar.write_corpus(tmp_path, train=800, valid=100, test=100, seed=seed)
    files = grammar.corpus_files(tmp_path)
    sources = {name: Path(paths[0]).read_text().splitlines() for name, paths in files.items()}
    assert [len(lines) for lines in sources.values()] == [800, 100, 100]
    everything = [line for lines in sources.values() for line in lines]
    assert len(set(everything)) == 1000
    assert grammar.draw_pairs(5, seed) == grammar.draw_pairs(5, seed)
    assert grammar.draw_pairs(5, seed) != grammar.draw_pairs(5, seed + 1)


def test_embedded_corpus_is_multimodal() -> None:
    """One German sentence, drawn often, has many English ones, of different lengths and orders."""
    translations = defaultdict(set)
    for draw in range(40):
        for source, target in grammar.draw_pairs(500, seed=draw):
            translations[source].add(target)
    often = [targets for targets in translations.values() if len(targets) >= 3]
    assert len(often) > 5
    assert any(len({len(target.split()) for target in targets}) > 1 for targets in often)


def test_german_agrees_in_case_and_gender() -> None:
    text = " ".join(source for source, _ in grammar.draw_pairs(3000, seed=5))
    for right in ("dem Kind", "einer Frau", "den Schlüssel", "unserem Jungen", "einen Hut"):
        assert right in text
    for wrong in ("den Buch", "dem Frau", "eine Hut", "das Uhr", "der Kind "):
        assert wrong not in text


def test_synthetic_rules() -> None:
    assert synthetic.valid_targets("2 1 4 3", "I") == ["2 2 1 4 4 4 4 3 3 3"]
    assert "0 2 2 1 4 4 4 4 3 3 3 0 0 0" in synthetic.valid_targets("2 1 4 3", "II")
    assert len(synthetic.valid_targets("2 1 5", "II")) == 5
    assert synthetic.accuracy(["2", "3"], ["2 2", "3 3"], "I") == 0.5
    assert synthetic.accuracy(["1"], ["0 0 1 0 0"], "II") == 1.0
    assert synthetic.accuracy(["1"], ["0 0 1 0"], "II") == 0.0


@pytest.mark.parametrize("experiment", ["I", "II"])
def test_synthetic_files(tmp_path: Path, experiment: synthetic.Experiment) -> None:
    synthetic.write_corpus(tmp_path, experiment, synthetic.Sizes(300, 20, 30, length=5), seed=1)
    files = synthetic.corpus_files(tmp_path)
    sources, targets = (Path(path).read_text().splitlines() for path in files["train"])
    assert len(sources) == len(set(sources)) == 300
    assert all(t in synthetic.valid_targets(s, experiment) for s, t in zip(sources, targets, strict=True))
    assert not set(sources) & set(Path(files["test"][0]).read_text().splitlines())
    with pytest.raises(UserError, match="larger --length"):
        synthetic.Sizes(300, 20, 30, length=2)


def test_reasons_to_drop() -> None:
    settings = Data(train=["a", "b"], valid=["a", "b"], max_words=5, max_ratio=2.0)
    assert reason_to_drop("a b", "c d", settings) is None
    assert reason_to_drop("", "c", settings) == reason_to_drop("a", " ", settings) == "empty"
    assert reason_to_drop("a b c d e f", "a b c d e", settings) == "too long"
    assert reason_to_drop("a", "a b c", settings) == "length ratio"
