"""Kills a small EM run again and again, resumes it, and compares what comes out with a run that was left alone.

    python tests/system/kill_resume.py --kills 50 [--seed N] [--device cuda]

Each kill is a SIGKILL to the process itself, either at a random moment or at a random file operation (just before an
open, rename, removal or flush, or while a file is being written). It is resumed by the same command; after the last
stage everything but timings has to be byte-identical. The command is forked from this process, which has loaded
everything already, so that a kill costs a second and not five. On a GPU the run is in deterministic mode.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch: a forked process must not need another's threads

from emnat import cli
from emnat.data import grammar
from emnat.models import storage

MODEL = """\
[teacher]
encoder_layers = 1
decoder_layers = 1
hidden = 16
filter = 16
heads = 2
[teacher.training]
steps = 12
tokens = 400
learning_rate = 8e-3
warmup = 4
validate_every = 4
validation_sentences = 5
average = 2
"""
CONFIG = """
seed = 3
{device}[data]
train = ["corpus/train.de", "corpus/train.en"]
valid = ["corpus/valid.de", "corpus/valid.en"]
[text]
vocabulary = 500
max_tokens = 60
{models}[em]
iterations = 3
patience = 3
distill_beam = 2
propose_beam = 2
[decode]
max_length_factor = 1.0
max_length_extra = 2
[evaluate]
latency_sentences = 1
latency_runs = 1
"""
OnOperation = Callable[[int, str, str], None]
WRITING = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "flush", "save"}


class Plan:
    """What happens to one process: nothing, or an end (or an error) after so many seconds or file operations."""

    def __init__(self, seconds: float | None = None, operation: int | None = None, delay: float = 0.0) -> None:
        self.seconds, self.operation, self.delay = seconds, operation, delay

    @property
    def kind(self) -> str:
        return "moment" if self.operation is None else ("operation" if not self.delay else "during a write")


def write_workplace(folder: Path, device: str = "cpu") -> None:
    grammar.write_corpus(folder / "corpus", train=60, valid=8, test=1, seed=3)
    where = f'device = "{device}"\ndeterministic = {str(device != "cpu").lower()}\n'
    models = MODEL + MODEL.replace("teacher", "student")
    (folder / "config.toml").write_text(CONFIG.replace("{device}", where).replace("{models}", models))


def train(workplace: Path, run: str, on_operation: OnOperation | None, seconds: float | None) -> int:
    """`emnat train` in a forked process; its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        os.chdir(workplace)
        sys.stdout = sys.stderr = (workplace / f"{run}.log").open("a", buffering=1)
        if on_operation:
            _watch_files(str(workplace / run), on_operation)
        if seconds is not None:
            threading.Thread(target=_kill_after, args=(seconds,), daemon=True).start()
        sys.argv = ["emnat", "train", "config.toml", f"run={run}"]
        status = 0
        try:
            cli.main()
        except SystemExit as ending:
            status = ending.code if isinstance(ending.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 1
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended)


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _watch_files(run: str, on_operation: OnOperation) -> None:
    """Have `on_operation(number, what, path)` called before everything this process does to files of its run."""
    numbers = iter(range(1 << 62))

    def note(what: str, path: object) -> None:
        name = os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""
        if name == run or name.startswith(run + os.sep):
            on_operation(next(numbers), what, name)

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            note("open", arguments[0])
        elif event in WRITING and event != "open":
            note(event, arguments[0])

    def flush(handle: int) -> None:
        note("flush", os.readlink(f"/proc/self/fd/{handle}"))
        really_flush(handle)

    def save(tensors: object, path: object, *rest: object) -> None:
        note("save", path)
        really_save(tensors, path, *rest)

    really_flush, really_save = os.fsync, storage.save_file
    os.fsync = flush
    storage.save_file = save  # type: ignore[assignment, attr-defined]
    sys.addaudithook(audit)


def results(run: Path) -> dict[str, str]:
    """A checksum of every file but timings, logs and what only says when something was made."""
    left_out = {"manifest.json", "latency.json", "report.html", "results.jsonl", ".lock", "config.toml"}
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in left_out]
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if "tensorboard" not in path.parts
    }


def count_operations(workplace: Path) -> tuple[list[str], float, dict[str, str]]:
    """An undisturbed run: its file operations (what and on which artifact), its seconds, its results."""
    noted = workplace / "operations"

    def write_down(number: int, what: str, path: str) -> None:
        os.write(handle, f"{what} {path}\n".encode())

    handle = os.open(noted, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    started = time.monotonic()
    status = train(workplace, "undisturbed", write_down, None)
    seconds = time.monotonic() - started
    os.close(handle)
    assert status == 0, (workplace / "undisturbed.log").read_text()
    return noted.read_text().splitlines(), seconds, results(workplace / "undisturbed")


def draw(chance: random.Random, operations: int, seconds: float) -> Plan:
    """Most ends come early in a process's life: a run takes about ten of them."""
    if chance.random() < 0.3:
        return Plan(seconds=chance.uniform(0, seconds / 5))
    delay = chance.uniform(0, 0.002) if chance.random() < 0.5 else 0.0
    return Plan(operation=chance.randrange(operations // 5), delay=delay)


def kill_and_resume(workplace: Path, kills: int, seed: int) -> tuple[int, Counter[str], Counter[str]]:
    """Kills survived; how many of each kind; how many by the artifact under way."""
    operations, seconds, wanted = count_operations(workplace)
    print(f"undisturbed: {len(operations)} file operations, {seconds:.1f} s, {len(wanted)} files compared", flush=True)
    chance = random.Random(seed)
    tried, survived, chain, number = 0, 0, 0, 0
    kinds: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    while tried < kills or chain:
        run = f"killed-{number}"
        plan = draw(chance, len(operations), seconds) if tried < kills else Plan()

        def end(count: int, what: str, path: str, plan: Plan = plan) -> None:
            if count == plan.operation:
                if plan.delay:
                    threading.Thread(target=_kill_after, args=(plan.delay,), daemon=True).start()
                else:
                    os.kill(os.getpid(), signal.SIGKILL)

        status = train(workplace, run, end, plan.seconds)
        if status == -signal.SIGKILL:
            tried, chain = tried + 1, chain + 1
            kinds[plan.kind] += 1
            stages[_under_way(workplace / run)] += 1
            continue
        log = (workplace / f"{run}.log").read_text()
        assert status == 0, f"seed {seed}: {run} ended with {status} after {chain} kills:\n{log[-3000:]}"
        found = results(workplace / run)
        differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        assert not differing, f"seed {seed}: {run} differs after {chain} kills: {differing}"
        survived += chain
        print(f"{run}: {chain} kills, identical ({survived} so far)", flush=True)
        shutil.rmtree(workplace / run)
        chain, number = 0, number + 1
    return survived, kinds, stages


def _under_way(run: Path) -> str:
    partial = sorted(str(path.relative_to(run)) for path in run.rglob("*.partial") if "scratch" not in path.parts)
    return partial[0].removesuffix(".partial") if partial else "between artifacts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder:
        write_workplace(Path(folder), options.device)
        survived, kinds, stages = kill_and_resume(Path(folder), options.kills, options.seed)
    print("by kind:", dict(kinds))
    print("by artifact under way:", dict(sorted(stages.items())))
    print(f"{survived} of {options.kills} kills survived")


if __name__ == "__main__":
    main()
