"""Peak memory of distilling, of scoring (NCM) and of the E-step, for corpora of several sizes.

    python benchmarks/pipeline_memory.py 10000 1000000

Each stage runs in a process of its own, on a corpus of short generated lines, with a tiny model that is hardly trained
(memory is the question, not quality). Prints one JSON object a line: `own_mib` is what the process cannot do without;
`peak_mib` has, besides, the pages of mapped files it has touched, which the system takes back when it needs them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from emnat import steps
from emnat.config import build_config
from emnat.workspace import open_run

STAGES = ("prepare", "teacher", "distil", "student", "score", "propose")
TINY = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "hidden": 16,
    "filter": 16,
    "heads": 1,
    "training": {"steps": 1, "tokens": 256, "validation_sentences": 10},
}


def write_corpus(folder: Path, lines: int) -> None:
    for name, count in (("train", lines), ("valid", 10)):
        with (folder / f"{name}.tsv").open("w") as file:
            for i in range(count):
                file.write(f"a{i % 7} b{i % 11} c{i % 13}\td{i % 7} e{i % 11} f{i % 13}\n")


def run_stages(folder: Path, last: str) -> None:
    """All stages up to `last`; those before it are there already and take no time or memory."""
    values = {
        "run": str(folder / "run"),
        "device": "cpu",
        "data": {"train": [str(folder / "train.tsv")], "valid": [str(folder / "valid.tsv")]},
        "text": {"subwords": "word", "vocabulary": 80, "max_tokens": 8},
        "teacher": TINY,
        "student": TINY,
        "em": {"distill_beam": 1, "propose_beam": 2},
        "decode": {"max_length_factor": 1.0, "max_length_extra": 1},
    }
    run = open_run(build_config(values, "benchmark"))
    wanted = STAGES[: STAGES.index(last) + 1]
    corpus = steps.prepare(run)
    if "teacher" in wanted:
        teacher = steps.train_teacher(run, corpus, "free-1", corpus.truth, None)
    if "distil" in wanted:
        distilled = steps.distill(run, corpus, "free-1", teacher)
    if "student" in wanted:
        student = steps.train_student(run, corpus, "free-1", distilled, None)
    if "score" in wanted:
        steps.measure(run, corpus, "free-1", None, student, teacher, distilled)
    if "propose" in wanted:
        candidates = steps.propose(run, corpus, "free-1", teacher, student, corpus.truth)
        steps.select(run, corpus, "free-2", candidates, corpus.truth, None)


class OwnMemory(threading.Thread):
    """The highest anonymous memory of this process, looked at every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mib = 0.0

    def run(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            anonymous = next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
            self.peak_mib = max(self.peak_mib, int(anonymous) / 1024)
            time.sleep(0.005)


def main() -> None:
    if sys.argv[1] == "--stage":
        started = time.monotonic()
        own = OwnMemory()
        own.start()
        run_stages(Path(sys.argv[3]), sys.argv[2])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found = {"own_mib": round(own.peak_mib), "peak_mib": round(peak), "seconds": round(time.monotonic() - started)}
        print(json.dumps({"stage": sys.argv[2]} | found))
        return
    for lines in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder), lines)
            for stage in STAGES:
                command = [sys.executable, __file__, "--stage", stage, folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                print(json.dumps({"lines": lines} | json.loads(done.stdout)), flush=True)


if __name__ == "__main__":
    main()
