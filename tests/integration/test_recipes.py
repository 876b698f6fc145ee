"""Every recipe is a valid config; those of the campaigns read the files as they are downloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from emnat.config import load_config
from emnat.data.grammar import draw_pairs
from tests.conftest import Emnat

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipes_are_valid(recipe: Path) -> None:
    load_config(recipe)


def write_segments(path: Path, lines: list[str]) -> None:
    segments = "".join(f'<seg id="{i}"> {line} </seg>\n' for i, line in enumerate(lines, 1))
    path.write_text(f'<refset setid="x">\n<doc docid="1">\n{segments}</doc>\n</refset>\n', encoding="utf-8")


def test_iwslt14(tmp_path: Path, emnat: Emnat) -> None:
    pairs = draw_pairs(230, seed=1)
    for side, language in enumerate(("de", "en")):
        body = "".join(f"{pair[side]}\n" for pair in pairs[1:])
        header = f"<url>u</url>\n<talkid>1</talkid>\n<title>{pairs[0][side]}</title>\n"
        (tmp_path / f"train.tags.de-en.{language}").write_text(header + body, encoding="utf-8")
        for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            write_segments(tmp_path / f"IWSLT14.{name}.de-en.{language}.xml", [pair[side] for pair in pairs[:3]])
    emnat("prepare", RECIPES / "iwslt14-de-en.toml", "run=run", "text.vocabulary=600", cwd=tmp_path)
    facts = json.loads((tmp_path / "run" / "data" / "manifest.json").read_text())["facts"]
    dropped = facts["train"].get("length ratio", 0)
    held_out = (230 - dropped) // 23
    assert facts["train"]["read"] == 230
    assert facts["train"]["held out"] == facts["valid"]["pairs"] == held_out
    assert facts["train"]["kept"] == 230 - dropped - held_out
    assert facts["test"]["pairs"] == 15
    valid = (tmp_path / "run" / "data" / "valid.source.txt").read_text(encoding="utf-8").splitlines()
    assert set(valid) <= {source for source, _ in pairs}
    assert not set(valid) & {pairs[0][0]}


def test_iwslt14_words_are_counted_as_the_usual_data_count_them(tmp_path: Path, emnat: Emnat) -> None:
    """Without normalised punctuation: `Don’t.` has more words than 1.5 times those of `Nein.`."""
    pairs = [*draw_pairs(100, seed=3), ("Nein.", "Don’t.")]
    for side, language in enumerate(("de", "en")):
        (tmp_path / f"a.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    sets = ['data.train=["a.de", "a.en"]', 'data.test=["a.de", "a.en"]', "text.vocabulary=600"]
    for run, setting in (("usual", "text.normalise=false"), ("normalised", "text.normalise=true")):
        emnat("prepare", RECIPES / "iwslt14-de-en.toml", f"run={run}", setting, *sets, cwd=tmp_path)
    manifests = [json.loads((tmp_path / run / "data/manifest.json").read_text()) for run in ("usual", "normalised")]
    usual, normalised = (manifest["facts"]["train"].get("length ratio", 0) for manifest in manifests)
    assert usual == normalised + 1
    assert load_config(RECIPES / "iwslt14-de-en.toml").text.normalise is False


@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en")], ids="-".join)
def test_wmt14(tmp_path: Path, emnat: Emnat, languages: tuple[str, str]) -> None:
    """Either direction, from a folder that holds the files of both."""
    pairs = draw_pairs(150, seed=2)  # German, English
    for side, language in enumerate(("de", "en")):
        for i, name in enumerate(("europarl-v7", "commoncrawl", "news-commentary-v9")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs[i * 50 : i * 50 + 50])
            (tmp_path / f"{name}.de-en.{language}").write_text(lines, encoding="utf-8")
        for part in ("src", "ref"):
            write_segments(tmp_path / f"newstest2013-{part}.{language}.sgm", [pair[side] for pair in pairs[:4]])
            write_segments(tmp_path / f"newstest2014-deen-{part}.{language}.sgm", [pair[side] for pair in pairs[4:9]])
    recipe = RECIPES / f"wmt14-{'-'.join(languages)}.toml"
    emnat("prepare", recipe, "run=run", "text.vocabulary=600", cwd=tmp_path)
    data = tmp_path / "run" / "data"
    facts = json.loads((data / "manifest.json").read_text())["facts"]
    assert facts["train"]["read"] == 150
    assert (facts["valid"]["pairs"], facts["test"]["pairs"]) == (4, 5)
    text = load_config(recipe).text
    assert (text.source_language, text.target_language) == languages
    side = ("de", "en").index(languages[0])
    sources = (data / "test.source.txt").read_text(encoding="utf-8").splitlines()
    assert sources == [pair[side] for pair in pairs[4:9]]


def test_ablations_share_what_they_have_in_common(workplace: Path, emnat: Emnat) -> None:
    """Variants of one iteration: `kl` goes on from the first one's candidates, the last from its second teacher."""
    command = [sys.executable, RECIPES / "ablations.py", "config.toml", "ablations", "--pairs", "100"]
    variants = ["nar", "5-samples", "kl", "not-amortised"]
    short = [f"{model}.training.steps=40" for model in ("teacher", "student", "larger_student")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    only = [f"--only={name}" for name in variants]
    subprocess.run([*command, *only, *short, "run=elsewhere"], cwd=workplace, env=environment, check=True)
    assert len((workplace / "ablations/corpus/100/train.source").read_text(encoding="utf-8").splitlines()) == 100
    assert not list(workplace.glob("ablations/*/larger"))  # which the config asks for
    others = sorted(str(path.relative_to(workplace)) for path in workplace.glob("ablations/*-*"))  # as documented
    runs = ["ablations/nar", "ablations/kl", *others]
    lines = json.loads(emnat("report", *runs, "--iteration", "2", "--json", cwd=workplace).stdout)
    assert [line["settings"] for line in lines] == [
        [],
        ["em.rule: 'nar' → 'kl'"],
        ["em.candidates: 'beam' → 'sample'"],
        ["em.amortised: True → False"],
    ]
    shown = emnat("report", *runs, "--iteration", "2", cwd=workplace).stdout.decode()
    assert "5-samples: em.candidates: 'beam' → 'sample'\n" in shown
    alone = [sys.executable, RECIPES / "ablations.py", "config.toml", "others", "--only", "kl"]
    refused = subprocess.run(alone, cwd=workplace, env=environment, capture_output=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"others/nar/data: missing" in refused.stderr

    again = [*command, "--only", "nar", 'data.train=["corpus/valid.de", "corpus/valid.en"]']
    refused = subprocess.run(again, cwd=workplace, env=environment, capture_output=True, check=False)
    assert refused.returncode == 2
    assert b"a part of other files than corpus/valid.de and corpus/valid.en" in refused.stderr

    several = [*command, "--only", "nar", 'data.train=[["a.de", "a.en"], ["b.de", "b.en"]]']
    refused = subprocess.run(several, cwd=workplace, env=environment, capture_output=True, check=False)
    assert refused.returncode == 2
    assert b"need a training set of two aligned files" in refused.stderr

    def files(artifact: str) -> list[int]:
        return [(workplace / run / artifact / "manifest.json").stat().st_ino for run in runs]

    searching, teachers, students = map(files, ("free-1/candidates", "free-2/teacher", "free-2/student"))
    assert searching[0] == searching[1] == searching[3] != searching[2]
    assert teachers[0] == teachers[3]
    assert len(set(teachers)) == 3
    assert len(set(students)) == 4
