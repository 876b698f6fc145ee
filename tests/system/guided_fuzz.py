"""The promise of fuzz.py for the parsers written in Python, with inputs that grow towards code not reached yet.

    pip install atheris
    PYTHONPATH=. python tests/system/guided_fuzz.py --cases 1000000 [--seed N]

The first byte of an input chooses what reads the rest. An error that a user is told about is a fine answer; anything
else, or ten seconds without an answer, ends the run and leaves the input in a file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["emnat", "html", "json", "tomllib"]):
    from emnat.artifacts import _digest, _serialised, check_artifact
    from emnat.config import load_config
    from emnat.errors import UserError
    from emnat.models import describe_model
    from emnat.text import read_lines, read_pairs

DESCRIPTION = {
    "format": 2, "kind": "nat", "vocabulary": 9, "max_tokens": 9, "model": {"size": "toy"}, "text": {}, "decode": {},
}  # fmt: skip
MANIFEST = {
    "format": 2, "artifact": "x", "parents": [], "seed": 1, "emnat": "0", "seconds": 0.5, "facts": {},
    "files": {"plain": {"bytes": 1, "sha256": "0"}},
}  # fmt: skip
SEEDS = {
    "test.sgm": '<doc>\n<seg id="1"> Guten &amp; Tag </seg><SEG>x&#10;y</seg>\n',
    "test.xml": "<mteval>\n<seg id='1'>a</seg>\n</mteval>\n",
    "train.tags.de-en.de": "<url>x</url>\n<title>Ein Titel</title>\n Satz \r\n",
    "train.tsv": "ein Haus\ta house\n",
    "train.jsonl": '{"source": "ein\\nHaus", "target": "\\ud83d\\ude00"}\n',
    "plain": "\ufeffa\r\nb\u2028c\n",
    "config.toml": 'run = "r"\n[data]\ntrain = ["a", "b"]\nvalid = ["a", "b"]\n[teacher]\nhidden = 64\n',
    "config.json": json.dumps(DESCRIPTION),
    "manifest.json": json.dumps(MANIFEST),
}
FILES = list(SEEDS)


def read(folder: Path, name: str, data: bytes) -> None:
    """Raises UserError or AssertionError or nothing."""
    path = folder / name
    path.write_bytes(data)
    newlines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    if name == "config.toml":
        load_config(path)
    elif name == "config.json":
        describe_model(folder)
    elif name == "manifest.json":
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            values = json.loads(data)
            path.write_bytes(_serialised(values | {"sha256": _digest(values)}))  # a stranger can compute it, too
        check_artifact(folder)
    elif name in ("train.tsv", "train.jsonl"):
        pairs = list(read_pairs([str(path)]))
        assert len(pairs) == newlines
        assert all("\n" not in first + second for first, second in pairs)
    else:
        lines = list(read_lines(path))
        assert all("\n" not in line for line in lines)
        assert name != "plain" or len(lines) == newlines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 10_000))
    options = parser.parse_args()
    cases: Counter[str] = Counter()
    refused: Counter[str] = Counter()

    def one_input(data: bytes) -> None:
        name = FILES[data[0] % len(FILES)] if data else "plain"
        cases[name] += 1
        sentence = "."
        try:
            read(folder, name, data[1:])
        except UserError as error:
            refused[name] += 1
            sentence = str(error)
        assert sentence.endswith((".", "?")), sentence
        if cases.total() == options.cases:  # said here, because atheris does not come back
            for file_name, count in sorted(cases.items()):
                print(f"{file_name}: {count} cases, {refused[file_name]} refused with a sentence")
            print(f"seed {options.seed}: {cases.total()} cases, no failure", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder, corpus = Path(temporary) / "files", Path(temporary) / "corpus"
        folder.mkdir()
        corpus.mkdir()
        for number, file_name in enumerate(FILES):
            (corpus / file_name).write_bytes(bytes([number]) + SEEDS[file_name].encode())
        limits = [f"-atheris_runs={options.cases}", f"-seed={options.seed}", "-timeout=10", "-max_len=2000"]
        atheris.enabled_hooks.add("RegEx")
        atheris.enabled_hooks.add("str")
        atheris.Setup([sys.argv[0], *limits, str(corpus)], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
