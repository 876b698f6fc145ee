"""The paper's two synthetic corpora: a language without multi-modality (I), and the same with it (II).

I: digit d becomes d copies of itself. II: four zeros more, some in front and the rest at the back, at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from emnat.errors import UserError
from emnat.world import derive_seed

Experiment = Literal["I", "II"]
_DIGITS = "12345"
_ZEROS = 4


def valid_targets(source: str, experiment: Experiment) -> list[str]:
    """Every right translation; in experiment II nobody can know where the zeros went, so all placings are right."""
    core = [digit for digit in source.split() for _ in range(int(digit))]
    if experiment == "I":
        return [" ".join(core)]
    return [" ".join(["0"] * front + core + ["0"] * (_ZEROS - front)) for front in range(_ZEROS + 1)]


def accuracy(sources: Sequence[str], outputs: Sequence[str], experiment: Experiment) -> float:
    """The share of outputs that are a right translation, every digit of them."""
    right = sum(output in valid_targets(source, experiment) for source, output in zip(sources, outputs, strict=True))
    return right / len(sources)


def corpus_files(folder: Path) -> dict[str, list[str]]:
    """The files of each set, as a config names them."""
    return {name: [str(folder / f"{name}.src"), str(folder / f"{name}.tgt")] for name in ("train", "valid", "test")}


def longest_target(length: int, experiment: Experiment) -> int:
    """Tokens that the target of a source of so many digits can have."""
    return len(_DIGITS) * length + (_ZEROS if experiment == "II" else 0)


@dataclass(frozen=True)
class Sizes:
    """Pairs of each set, and digits of a source."""

    train: int
    valid: int
    test: int
    length: int

    def __post_init__(self) -> None:
        total = self.train + self.valid + self.test
        if total > len(_DIGITS) ** self.length // 2:
            raise UserError(f"{total} different sources of length {self.length} are too many: use a larger --length.")


def write_corpus(folder: Path, experiment: Experiment, sizes: Sizes, seed: int) -> None:
    """`train.src`, `train.tgt` and so on; no source occurs twice, so that no source has two targets."""
    random = Random(derive_seed("synthetic", experiment, seed))
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    counts = {"train": sizes.train, "valid": sizes.valid, "test": sizes.test}
    for name, (source_path, target_path) in corpus_files(folder).items():
        with Path(source_path).open("w") as sources, Path(target_path).open("w") as targets:
            goal = len(seen) + counts[name]
            while len(seen) < goal:
                source = " ".join(random.choices(_DIGITS, k=sizes.length))
                if source not in seen:
                    seen.add(source)
                    sources.write(source + "\n")
                    targets.write(random.choice(valid_targets(source, experiment)) + "\n")
