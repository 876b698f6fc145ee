"""One EM iteration in many ways on a part of a corpus: rules, lengths, candidates, amortisation, warm start, <concat>.

    python recipes/ablations.py recipes/europarl-300k.toml runs/ablations --pairs 100000 [key=value ...]
    emnat report runs/ablations/nar runs/ablations/{kl,ratio,posterior,*-*} --iteration 2

The first variant, `nar`, has EM's defaults whatever the config says (but not whatever settings here say): 5 candidates,
the rule `nar`, from scratch.
Every variant is a run of its own with two iterations; what it has in common with the first (data, first teacher, first
student, ...) is linked, not made again. All run in this one process, one after another, so that what is compiled for a
GPU is compiled once. Run it again to continue.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from emnat import interrupt
from emnat.artifacts import write_atomically
from emnat.cli import errors_in_one_sentence
from emnat.config import load_config
from emnat.em import run_em
from emnat.errors import UserError
from emnat.progress import log
from emnat.text import read_lines
from emnat.workspace import begin
from emnat.world import be_deterministic

FIRST = ["data", "free-1/teacher", "free-1/distilled", "free-1/student", "free-1/measures"]
ALL = [*FIRST, "free-1/candidates", "free-1/scores"]
TEACHER = ["free-2/targets", "free-2/teacher"]  # of the second iteration
VARIANTS: dict[str, tuple[list[str], list[str]]] = {  # name: settings, what is shared with the first variant
    "nar": ([], []),
    "kl": (["em.rule=kl"], ALL),
    "ratio": (["em.rule=ratio"], ALL),
    "posterior": (["em.rule=posterior"], ALL),
    "length-penalty": (["em.length_penalty=1.4"], ALL),
    "10-candidates": (["em.propose_beam=10"], FIRST),
    "20-candidates": (["em.propose_beam=20"], FIRST),
    "5-samples": (["em.candidates=sample", "em.propose_beam=5"], FIRST),
    "20-samples": (["em.candidates=sample", "em.propose_beam=20"], FIRST),
    "not-amortised": (["em.amortised=false"], [*ALL, *TEACHER]),
    "warm-start": (["em.warm_start=true"], ALL),
    "no-concat": (["text.concat=false"], []),
}


def write_part(config: Path, settings: list[str], folder: Path, pairs: int) -> list[str]:
    """The first pairs of the training set, as two files; settings that name them."""
    files = load_config(config, settings).data.train
    if len(files) != 2 or not all(isinstance(path, str) for path in files):
        raise UserError(f"{config}: ablations need a training set of two aligned files.")
    folder.mkdir(parents=True, exist_ok=True)
    noted, named = folder / "files.json", json.dumps(files).encode()
    if noted.exists() and noted.read_bytes() != named:
        raise UserError(f"{folder}: a part of other files than {files[0]} and {files[1]}: choose another folder.")
    write_atomically(noted, named)
    part = [folder / f"train.{side}" for side in ("source", "target")]
    for path, whole in zip(part, files, strict=True):
        if not path.exists():
            lines = (line for _, line in zip(range(pairs), read_lines(str(whole)), strict=False))
            write_atomically(path, "".join(line + "\n" for line in lines).encode())
    return [f"data.train={json.dumps([str(path) for path in part])}"]


def share(first: Path, run: Path, artifacts: list[str]) -> None:
    for name in artifacts:
        if not (first / name).exists():
            raise UserError(f"{first / name}: missing: all variants begin with what the first one, nar, has made.")
        if not (run / name).exists():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            unfinished = run / f"{name}.partial"
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(first / name, unfinished, copy_function=os.link)
            unfinished.rename(run / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--only", action="append", choices=list(VARIANTS), help="may be repeated")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    settings: list[str] = options.settings
    part = write_part(options.config, settings, options.folder / "corpus" / str(options.pairs), options.pairs)
    plain = ["em.rule=nar", "em.length_penalty=0", "em.posterior_weight=1", "em.propose_beam=5", "em.candidates=beam"]
    plain += ["em.amortised=true", "em.warm_start=false"]
    common = [*plain, *settings, *part, "em.iterations=2", "em.bounds=false"]
    for name in options.only or VARIANTS:
        own, shared = VARIANTS[name]
        log.info("variant %s", name)
        config = load_config(options.config, [*common, *own, f"run={options.folder / name}"])
        config = config.model_copy(update={"larger_student": None})  # it comes after EM
        if config.deterministic:
            be_deterministic()
        with begin(config) as run:  # a folder that has a config may be filled
            share(options.folder / "nar", run.directory, shared)
            run_em(run)


if __name__ == "__main__":
    try:
        with errors_in_one_sentence(), interrupt.graceful():
            main()
    except interrupt.Interrupted as error:
        print(f"ablations: interrupted, and saved; {interrupt.CONTINUE}.", file=sys.stderr)
        sys.exit(128 + error.number)
