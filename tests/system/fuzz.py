"""Random and hostile input for everything that reads: none crashes, none hangs, none breaks the alignment of lines.

    python tests/system/fuzz.py --cases 1000000 [--seed N]

Each case is drawn from (seed, number), so `--seed S --only NUMBER` repeats one. An error that a user is told about
(UserError) is a fine answer; any other exception, or ten seconds without an answer, is a failure. Targets: bytes as
lines, aligned files, TSV and JSONL, campaign mark-up, compressed files, the tokeniser's round trip, config files, model
directories, and the translate stream.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import lzma
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from emnat.config import Decode, Text, load_config
from emnat.data.grammar import draw_pairs
from emnat.decoding.translator import Translator, load_translator
from emnat.errors import UserError
from emnat.models import NAT, save_model
from emnat.text import TextPipeline, Vocabulary, decode_lines, read_lines, read_pairs, train_vocabulary
from tests.conftest import TINY

HOSTILE = [
    "\x00", "\x01", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u2029", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e",
    "\ufeff", "\u200b", "\u200e", "\u202e", "\u2066", "\u0627\u0644\u0639\u0631", "\u05e9\u05dc\u05d5\u05dd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "e\u0301", "\u0301", "\ufffd", "\uffff",
    "\U0010ffff", "\u2581", "<concat>", "<s>", "</s>", "<pad>", "<unk>", "<0x0A>", "@@", "&amp;", "&#10;", "@-@",
    "%s", "{}", "\\n", "\t", " ", "  ", "\u00a0", "\u3000", "ﬁ", "İ", "ß", "１２３",
]  # fmt: skip
WORDS = [word for pair in draw_pairs(50, seed=1) for line in pair for word in line.split()]
TIME = 10  # seconds for one case


def some_text(chance: random.Random) -> str:
    """No newline, no lone surrogate: a line of a text file."""
    parts = []
    for _ in range(chance.choice([0, 1, 1, 2, 3, 5, 8, 30])):
        kind = chance.random()
        if kind < 0.45:
            parts.append(chance.choice(WORDS))
        elif kind < 0.8:
            parts.append(chance.choice(HOSTILE))
        else:
            parts.append(chr(chance.choice([chance.randrange(32, 0xD800), chance.randrange(0xE000, 0x110000)])))
    line = chance.choice(["", " "]).join(parts)
    return line.replace("\n", " ") * (1 if chance.random() < 0.999 else 2_000)


def some_bytes(chance: random.Random) -> bytes:
    data = "\n".join(some_text(chance) for _ in range(chance.randrange(4))).encode()
    for _ in range(chance.choice([0, 0, 0, 1, 3])):
        at = chance.randrange(len(data) + 1)
        junk = chance.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf8", b"\r\n", b"\n", b"\xef\xbb\xbf"])
        data = data[:at] + junk + data[at:]
    return data


class Targets:
    """What is fuzzed. Every method takes its randomness, and raises UserError or AssertionError or nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = [line for pair in draw_pairs(300, seed=1) for line in pair]
        serialized = train_vocabulary(lambda: iter(lines), "bpe", 700, seed=1)
        self.vocabulary = Vocabulary(serialized, "fuzz")
        self.pipelines = [
            TextPipeline(Text(moses=moses, lowercase=lowercase, concat=concat), self.vocabulary)
            for moses, lowercase, concat in ((False, False, True), (False, False, False), (True, True, True))
        ]
        self.model = folder / "model"
        self.model.mkdir()
        torch.manual_seed(1)
        (self.model / "tokenizer.model").write_bytes(serialized)
        save_model(NAT(TINY, len(self.vocabulary), 20), self.model, Text(), Decode())
        self.translator: Translator = load_translator(self.model, "cpu")

    def lines(self, chance: random.Random) -> None:
        data = some_bytes(chance)
        raw = data.split(b"\n")
        found = list(decode_lines((line + b"\n" for line in raw), "fuzz"))
        assert len(found) == len(raw)
        assert all("\n" not in line for line in found)

    def files(self, chance: random.Random) -> None:
        data, suffix = some_bytes(chance), chance.choice(["txt", "gz", "xz", "tsv", "jsonl", "sgm", "xml"])
        path = self.folder / chance.choice([f"file.{suffix}", f"train.tags.{suffix}"])
        packed = {"gz": gzip.compress, "xz": lzma.compress}.get(suffix, bytes)(data)
        if chance.random() < 0.3 and packed:
            packed = packed[: chance.randrange(len(packed))]
        path.write_bytes(packed)
        if suffix in ("tsv", "jsonl"):
            pairs = list(read_pairs([str(path)]))
            assert len(pairs) == packed.count(b"\n") + (packed[-1:] not in (b"", b"\n"))
        else:
            assert all("\n" not in line for line in read_lines(path))

    def aligned(self, chance: random.Random) -> None:
        paths = [self.folder / name for name in ("a", "b")]
        for path in paths:
            path.write_bytes(some_bytes(chance))
        counts = [path.read_bytes().count(b"\n") + (path.read_bytes()[-1:] not in (b"", b"\n")) for path in paths]
        pairs = list(read_pairs([str(path) for path in paths]))
        assert counts == [len(pairs)] * 2

    def json_lines(self, chance: random.Random) -> None:
        target = chance.choice([some_text(chance), "a\nb", None, 3, [], "\ud800"])
        record = {"source": some_text(chance), "target": target}
        text = json.dumps(chance.choice([record, record, record, [record], "x", {"source": "x"}]))
        path = self.folder / "x.jsonl"
        path.write_text(chance.choice([text, text, text[: chance.randrange(len(text))], "[" * 2_000]) + "\n")
        ((first, second),) = read_pairs([str(path)])
        assert "\n" not in first + second

    def round_trip(self, chance: random.Random) -> None:
        line, pipeline = some_text(chance), chance.choice(self.pipelines)
        ids = pipeline.encode_target(line)
        text = pipeline.decode_target(ids)
        assert "\n" not in text
        if pipeline.settings.moses or not line.strip():
            return
        assert text == line, (line, text)
        assert not any(a == b for a, b in itertools.pairwise(ids)) or not pipeline.settings.concat

    def config(self, chance: random.Random) -> None:
        base = 'run = "r"\n[data]\ntrain = ["a", "b"]\nvalid = ["a", "b"]\n[teacher]\nhidden = 64\n[em]\nrule = "kl"\n'
        path = self.folder / "config.toml"
        data = bytearray(base.encode())
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.choice(
                [b"=", b"[", b"9" * 40, b"-", b"\xff", b'"', b"nan", b"\n"]
            )
        path.write_bytes(bytes(data))
        override = chance.choice(["em.rule=nar", "x", "=", "em=3", "teacher.hidden=-1", "a.b.c=1", some_text(chance)])
        load_config(path, [override] if chance.random() < 0.5 else [])

    def model_directory(self, chance: random.Random) -> None:
        folder = self.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.model, folder)
        path = folder / chance.choice(["config.json", "model.safetensors", "tokenizer.model"])
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 1, 5])):
            at = chance.randrange(chance.choice([len(data), min(len(data), 4_000)]))
            data[at : at + chance.randrange(3)] = bytes(chance.randrange(256) for _ in range(chance.randrange(4)))
        path.write_bytes(bytes(data if chance.random() < 0.8 else data[: chance.randrange(len(data))]))
        load_translator(folder, "cpu").translate(["Der Arzt lacht."])

    def stream(self, chance: random.Random) -> None:
        lines = [some_text(chance) for _ in range(chance.randrange(6))]
        found = list(
            self.translator.stream(iter(lines), None, chance.choice([1, 3]), None, None, chance.randrange(1, 4))
        )
        assert len(found) == len(lines)
        assert all("\n" not in line for line in found)


SHARES = {
    "lines": 0.40, "round_trip": 0.35, "config": 0.06, "json_lines": 0.06, "aligned": 0.05, "files": 0.05,
    "stream": 0.02, "model_directory": 0.01,
}  # fmt: skip


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(TIME)
    try:
        yield
    finally:
        signal.alarm(0)


def fuzz(folder: Path, seed: int, numbers: range) -> tuple[Counter[str], Counter[str], list[str]]:
    """Cases and refusals (UserError) by target, and what failed."""
    targets = Targets(folder)
    cases: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    failures: list[str] = []
    for number in numbers:
        chance = random.Random(f"{seed} {number}")
        (name,) = chance.choices(list(SHARES), list(SHARES.values()))
        target: Callable[[random.Random], None] = getattr(targets, name)
        cases[name] += 1
        try:
            with limited_time():
                target(chance)
        except UserError as error:
            refused[name] += 1
            if not str(error).endswith((".", "?")):
                failures.append(f"case {number} ({name}): not a sentence: {error}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            failures.append(f"case {number} ({name}): {type(error).__name__}: {error}")
    return cases, refused, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    numbers = range(options.cases) if options.only is None else range(options.only, options.only + 1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cases, refused, failures = fuzz(Path(folder), options.seed, numbers)
    for name, count in sorted(cases.items()):
        print(f"{name}: {count} cases, {refused[name]} refused with a sentence")
    for failure in failures[:30]:
        print(failure)
    print(f"seed {options.seed}, {time.monotonic() - started:.0f} s")
    print(f"{sum(cases.values())} cases, {len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
