"""The commands, thin: they read arguments, call the library, and print. Errors of a user's exit with code 2."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import torch
import typer
from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

from emnat import interrupt
from emnat._version import __version__
from emnat.artifacts import check_artifact, explained_disk_errors, read_facts, remove_folder
from emnat.bench import Task, run_inference_bench, run_training_bench
from emnat.config import Config, NarDecoder, Size, load_config
from emnat.contrast import run_contrast
from emnat.data import grammar
from emnat.data import synthetic as synthetic_corpus
from emnat.data.prepare import evaluation_set_from_pairs, load_evaluation_set, reported_set
from emnat.data.synthetic import Experiment
from emnat.decoding.translator import load_translator
from emnat.em import run_em
from emnat.errors import UserError
from emnat.evaluation import log_probs_of_lines, measure_latency, measure_student, measure_teacher
from emnat.export import Format, Precision, export_model
from emnat.models import Teacher
from emnat.progress import log
from emnat.report import (
    claims,
    claims_as_json,
    collect,
    collect_accuracy,
    compare_runs,
    is_synthetic,
    print_accuracy,
    print_comparison,
    print_tables,
    write_page,
    write_results_file,
)
from emnat.slim import slim_run
from emnat.steps import prepare as prepare_data
from emnat.text import decode_lines, read_pairs
from emnat.text.corpus import parse_tsv
from emnat.workspace import Run, begin, find_run, locked, run_directory_of
from emnat.world import be_deterministic, choose_device, is_out_of_memory

_SMALLER = (
    "lower decode.tokens (of a finished model: in its config.json, and delete its manifest.json, which knows the old "
    "one), or start another run with fewer training.tokens or a smaller model."
)
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
console = Console()

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; see recipes/.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, e.g. em.iterations=4.")
]
ModelDirectory = Annotated[Path, typer.Argument(metavar="MODEL", help="A run directory or a model directory.")]
Decoder = Annotated[NarDecoder | None, typer.Option(help="How a student's output is read off (default: odd).")]
LengthCandidates = Annotated[int, typer.Option(min=1, max=1_000, help="Target lengths tried at once.")]
Rescore = Annotated[bool | None, typer.Option(help="Let the referee choose among them (default: if there is one).")]
Beam = Annotated[int | None, typer.Option(min=1, max=1_000, help="Beam size of a teacher; 1 is greedy.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Block = Annotated[
    int | None, typer.Option(min=1, help="Lines read before theirs are written (default: 1,000; at a keyboard 1).")
]


def _show_version(asked: bool) -> None:
    if asked:
        print(f"emnat {__version__}, PyTorch {torch.__version__}")
        raise typer.Exit


@app.callback()
def begin_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print versions and stop.")
    ] = False,
) -> None:
    interrupt.as_usual()


@app.command()
def demo(
    run: Annotated[str, typer.Option(help="Where to put everything.")] = "runs/demo",
    seed: Annotated[int, typer.Option(help="Of the corpus and of all training.")] = 1,
    pairs: Annotated[int, typer.Option(min=10, help="Training pairs to generate.")] = 5_000,
    overrides: Overrides = None,
) -> None:
    """The whole EM loop on the embedded corpus: a few minutes, ending in a results table and a report."""
    folder = Path(run) / f"corpus-{pairs}"  # the size is in the name, so that another size is another config
    config = _packaged_config("demo.toml", run, seed, grammar.corpus_files(folder), overrides)
    with _resumable(), begin(config) as opened:
        _write_once(opened, folder, partial(grammar.write_corpus, train=pairs, valid=500, test=1_000, seed=seed))
        _train(opened)
        _print_samples(opened)
        _report(opened, as_json=False, page=None)


@app.command()
def prepare(config: ConfigFile, overrides: Overrides = None) -> None:
    """Text files → vocabulary and ids. `train` does this too; alone, it shows what cleaning keeps and drops."""
    with _resumable(), begin(load_config(config, overrides or [])) as run:
        facts = read_facts(prepare_data(run).folder)
    table = Table(title=f"Prepared in {run.directory / 'data'}")
    table.add_column("set")
    table.add_column("pairs (of the vocabulary: pieces)", justify="right")
    for name, counts in facts.items():
        for reason, count in counts.items() if isinstance(counts, dict) else [("", counts)]:
            table.add_row(f"{name}: {reason}".removesuffix(": "), str(count))
    console.print(table)


@app.command()
def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Run EM as the config says, from text to a one-pass model. Run it again to continue after an interruption."""
    with _resumable(), begin(load_config(config, overrides or [])) as run:
        _train(run)
        _report(run, as_json=False, page=None)


@app.command()
def translate(
    model: ModelDirectory,
    decoder: Decoder = None,
    length_candidates: LengthCandidates = 1,
    rescore: Rescore = None,
    beam: Beam = None,
    device: Device = "auto",
    block: Block = None,
) -> None:
    """Translate standard input to standard output, line for line."""
    translator = load_translator(model, device)
    lines = decode_lines(_is_open(sys.stdin, "input").buffer, "standard input")
    out, block = _is_open(sys.stdout, "output").buffer, block or _default_block()
    for number, line in enumerate(translator.stream(lines, decoder, length_candidates, rescore, beam, block), 1):
        out.write(line.encode() + b"\n")
        if number % block == 0:
            out.flush()
    out.flush()


@app.command()
def score(
    model: ModelDirectory,
    device: Device = "auto",
    block: Block = None,
) -> None:
    """Write log p(target|source) for every line `source TAB target` of standard input (-inf for an empty side)."""
    translator = load_translator(model, device)
    lines = decode_lines(_is_open(sys.stdin, "input").buffer, "standard input")
    out, block = _is_open(sys.stdout, "output"), block or _default_block()
    pairs = (parse_tsv(line, f"standard input, line {number}") for number, line in enumerate(lines, 1))
    for number, value in enumerate(log_probs_of_lines(translator, pairs, block), 1):
        out.write(f"{value:.6f}\n")
        if number % block == 0:
            out.flush()
    out.flush()


@app.command()
def evaluate(
    model: ModelDirectory,
    source: Annotated[Path | None, typer.Option(help="Text to translate (default: the run's test set).")] = None,
    target: Annotated[Path | None, typer.Option(help="Its references.")] = None,
    lowercase: Annotated[bool | None, typer.Option(help="Compare without case (default: as in the run).")] = None,
    latency: Annotated[int, typer.Option(min=0, help="Sentences to time at batch 1; 0: none.")] = 50,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score every decoder of a model: BLEU with its signature, chrF, length ratio, repeats, accuracy, latency."""
    translator = load_translator(model, device)
    if source and target:
        sentences = evaluation_set_from_pairs(read_pairs([str(source), str(target)]), translator.pipeline)
    elif source or target:
        raise UserError("give both --source and --target, or neither.")
    elif (directory := run_directory_of(model)) is None:
        raise UserError(f"{model}: a model without its run has no test set: give --source and --target.")
    else:
        run = find_run(directory)
        data = run.artifact("data")
        check_artifact(data)
        sentences = load_evaluation_set(data, reported_set(data))
        lowercase = run.config.evaluate.lowercase if lowercase is None else lowercase
    measure = measure_teacher if isinstance(translator.model, Teacher) else measure_student
    rows, _ = measure(translator, sentences, bool(lowercase))
    for name, entry in measure_latency([translator], sentences.source_ids, latency, runs=5).items():
        rows[name] |= {"latency_ms": entry["ms"], "hardware": entry["hardware"]}
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        _print_scores(rows)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run directory; several are compared.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and write nothing.")] = False,
    page: Annotated[Path | None, typer.Option(help="Where to write the page (default: RUN/report.html).")] = None,
    iteration: Annotated[
        int | None, typer.Option(min=1, help="Of several runs: this iteration (default: the chosen one).")
    ] = None,
) -> None:
    """Print the paper's tables for a run, and write one self-contained HTML page; or set several runs side by side."""
    if len(runs) == 1 and iteration is not None:
        raise UserError("--iteration is for several runs side by side; of one run, all iterations are shown.")
    opened = [find_run(run) for run in runs]
    if any(is_synthetic(run) for run in opened):
        if not all(is_synthetic(run) for run in opened) or page is not None or iteration is not None:
            raise UserError("synthetic experiments have a table of their own: no other runs, --page or --iteration.")
        _report_accuracy(opened, as_json)
        return
    if len(runs) == 1:
        _report(opened[0], as_json, page)
        return
    if page is not None:
        raise UserError("--page is for one run: several side by side have a table only.")
    results = [collect(run) for run in opened]
    lines = compare_runs(results, iteration)
    if as_json:
        both = [line.as_json() | {"report": each.as_json()} for line, each in zip(lines, results, strict=True)]
        print(json.dumps(both, indent=1))
    else:
        print_comparison(lines, console)


@app.command()
def slim(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]) -> None:
    """Free disk: delete what iterations hold that are neither best nor among the last two. The run can be continued."""
    found = find_run(run)
    with locked(found.directory):
        freed = slim_run(found)
    console.print(f"freed {sum(freed.values()) / 2**20:,.0f} MiB: {', '.join(freed) or 'nothing to delete'}")


@app.command()
def synthetic(
    experiment: Annotated[Experiment, typer.Argument(help="I (no multi-modality) or II (with it).")],
    run: Annotated[str | None, typer.Option(help="Where to put everything (default: by experiment).")] = None,
    pairs: Annotated[int, typer.Option(min=10, help="Training pairs.")] = 2_000_000,
    length: Annotated[int, typer.Option(min=1, help="Digits of a source.")] = 30,
    test: Annotated[int, typer.Option(min=1, help="Test pairs.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Of the corpus and of all training.")] = 1,
    corpus_only: Annotated[bool, typer.Option("--corpus-only", help="Write the text files and stop.")] = False,
    overrides: Overrides = None,
) -> None:
    """The paper's synthetic experiments: AR and NAR accuracy on a corpus without or with multi-modality."""
    run = run or f"runs/synthetic-{experiment}"
    sizes = synthetic_corpus.Sizes(train=pairs, valid=min(1_000, pairs), test=test, length=length)
    folder = Path(run) / f"corpus-{experiment}-{pairs}-{test}-{length}"
    config = _packaged_config("synthetic.toml", run, seed, synthetic_corpus.corpus_files(folder), overrides)
    longest = synthetic_corpus.longest_target(length, experiment)
    if longest > config.text.max_tokens and not folder.exists():
        raise UserError(f"--length {length}: a target can have {longest} tokens: add text.max_tokens={longest}.")
    write = partial(synthetic_corpus.write_corpus, experiment=experiment, sizes=sizes, seed=seed)
    with _resumable(), begin(config) as opened:
        _write_once(opened, folder, write)
        if corpus_only:
            return
        if config.deterministic:
            be_deterministic()
        run_contrast(opened, experiment)
        _report_accuracy([opened], as_json=False)


@app.command()
def export(
    model: ModelDirectory,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to make.")],
    form: Annotated[Format, typer.Option("--format", help="onnx for a student, ctranslate2 for a teacher.")] = "onnx",
    precision: Annotated[Precision, typer.Option(help="Of an onnx student's weights.")] = "int8",
) -> None:
    """Write a model for another run-time. A student for ONNX Runtime is loaded like any model, and fast on a CPU."""
    export_model(model, out, form, precision)
    console.print(f"wrote {out}")


@app.command()
def bench(
    size: Annotated[Size, typer.Option(help="Of all models.")] = "base",
    vocabulary: Annotated[int, typer.Option(min=100)] = 32_000,
    tokens: Annotated[int, typer.Option(min=1, help="Of each source and of each output.")] = 25,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Sentences at once; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Turns of every contender; the median counts.")] = 20,
    only: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Contenders with this in their description; repeatable.")
    ] = None,
    training: Annotated[bool, typer.Option("--training", help="Time training instead of translating.")] = False,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time our decoders against each other and against other software, with random weights, in one run."""
    chosen = choose_device(device)
    task = Task(size, vocabulary, tokens, 1, chosen, "auto")
    if training:
        rows = [row for count in batch or [512] for row in run_training_bench(replace(task, batch=count), runs)]
    else:
        rows = run_inference_bench(task, batch or [1, 32], runs, only or [])
    print(json.dumps(rows, indent=1)) if as_json else _print_bench(rows)


def main() -> None:
    """Entry point: what a user can put right ends in one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that has no × or ← gets a question mark
            stream.reconfigure(errors="replace")
    with errors_in_one_sentence():
        app()


@contextmanager
def errors_in_one_sentence() -> Iterator[None]:
    """Also for scripts that do what a command does."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        yield
    except UserError as error:
        _fail(str(error))
    except torch.OutOfMemoryError:
        _fail(f"out of GPU memory: {_SMALLER}")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(f"out of memory: {_SMALLER}")
    except OSError as error:
        _fail(f"{error.filename or 'input or output'}: {error.strerror or error}.")


def _fail(message: str) -> NoReturn:
    print(f"emnat: {message}", file=sys.stderr)
    sys.exit(2)


def _packaged_config(
    name: str, run: str, seed: int, corpus: dict[str, list[str]], overrides: list[str] | None
) -> Config:
    """A recipe that comes with emnat, for a corpus just written."""
    places = [f"data.{part}={json.dumps(paths)}" for part, paths in corpus.items()]
    own = [f"run={json.dumps(run)}", f"seed={seed}", *places]
    return load_config(Path(str(files("emnat") / name)), [*own, *(overrides or [])])


@contextmanager
def _resumable() -> Iterator[None]:
    """Ctrl-C or SIGTERM in here loses nothing, and says so."""
    try:
        with interrupt.graceful():
            yield
    except interrupt.Interrupted as error:
        print(f"emnat: interrupted, and saved; {interrupt.CONTINUE}.", file=sys.stderr)
        raise typer.Exit(128 + error.number) from None


def _is_open(stream: TextIO | None, name: str) -> TextIO:
    if stream is None:
        raise UserError(f"standard {name} is closed: connect it to a file or a pipe.")
    return stream


def _default_block() -> int:
    """Whoever types a line waits for its answer."""
    return 1 if sys.stdin.isatty() else 1_000


def _write_once(run: Run, folder: Path, write: Callable[[Path], None]) -> None:
    """A generated corpus: whole or absent. One of another seed gives way if nothing has been made from it yet."""
    seed, unfinished = str(run.config.seed).encode(), folder.with_suffix(".partial")
    noted = folder / "seed"
    with explained_disk_errors(folder):
        if noted.exists() and noted.read_bytes() != seed and not run.artifact("data").exists():
            remove_folder(unfinished)
            folder.rename(unfinished)
        if not folder.exists():
            write(unfinished)
            (unfinished / "seed").write_bytes(seed)
            unfinished.rename(folder)


def _train(run: Run) -> None:
    choose_device(run.config.device)  # that there is none is found before the text is read
    if run.config.deterministic:
        be_deterministic()
    steps = [model.training.steps for model in (run.config.teacher, run.config.student)]
    most = run.config.em.iterations
    log.info("EM: up to t = %d; at t = 1 a teacher of %d steps and a student of %d.", most, *steps)
    best = run_em(run)
    log.info("The best student is iteration %s; the model is in %s.", best.stage, run.artifact("model"))
    if run.config.larger_student is not None:
        log.info("The larger student is in %s.", run.artifact("larger/model"))


def _report(run: Run, as_json: bool, page: Path | None) -> None:
    if page is not None and page.is_dir():
        raise UserError(f"{page}: a directory: name a file for the page.")
    results = collect(run)
    made = claims(results)
    if as_json:
        print(json.dumps(results.as_json() | claims_as_json(results, made), indent=1))
        return
    write_results_file(results)
    page = page or run.directory / "report.html"
    write_page(results, made, page)
    print_tables(results, made, console)
    console.print(f"Report: {page}", soft_wrap=True)


def _report_accuracy(runs: list[Run], as_json: bool) -> None:
    found = [collect_accuracy(run) for run in runs]
    if as_json:
        print(json.dumps(found[0] if len(found) == 1 else found, indent=1))
    else:
        print_accuracy(found, console)


def _print_samples(run: Run, count: int = 3) -> None:
    """Some test sentences as the finished model translates them."""
    results = collect(run)
    sources, references = results.test_text()
    assert results.final is not None
    outputs = results.outputs(results.final, "odd")
    table = Table(title="Sample translations (one pass, ODD)", show_header=False, show_lines=True)
    for i in range(min(count, len(sources))):
        table.add_row(f"{sources[i]}\n[green]{outputs[i]}[/green]\n[dim]reference: {references[i]}[/dim]")
    console.print(table)


def _print_bench(rows: list[dict[str, Any]]) -> None:
    """One table for each batch size."""
    over = "speedup_over_eager" if "speedup_over_eager" in rows[0] else "speedup_over_ar_beam5"
    for batch in sorted({row["batch"] for row in rows}):
        here = [row for row in rows if row["batch"] == batch]
        table = Table(title=f"batch {batch}, {here[0]['target_tokens']} target tokens, {here[0]['hardware']}")
        table.add_column("", no_wrap=True)
        for column in ("engine", "ms", "sentences/s", "speed-up"):
            table.add_column(column, justify="left" if column == "engine" else "right")
        for row in here:
            ratio = "" if row[over] is None else f"{row[over]:.1f}×"
            numbers = f"{row['ms_median']:.2f}", f"{row['sentences_per_s']:.1f}", ratio
            table.add_row(row["name"], f"{row['engine']}, {row['precision']}", *numbers)
        console.print(table)
    console.print(f"speed-up: {over.removeprefix('speedup_').replace('_', ' ')}")


def _print_scores(rows: dict[str, dict[str, Any]]) -> None:
    columns: dict[str, Callable[[float], str]] = {
        "bleu": "{:.2f}".format,
        "bleu_detokenised": "{:.2f}".format,
        "chrf": "{:.2f}".format,
        "length_ratio": "{:.3f}".format,
        "repeat_rate": "{:.4f}".format,
        "accuracy": "{:.3f}".format,
        "latency_ms": "{:.2f}".format,
    }
    table = Table(box=SIMPLE_HEAVY, pad_edge=False, collapse_padding=True)
    table.add_column("decoder")
    for heading in columns:
        words = heading.split("_")
        table.add_column(" ".join(words), justify="right", width=max(6, *map(len, words)))
    for name, row in rows.items():
        table.add_row(name, *(show(row[key]) if key in row else "" for key, show in columns.items()))
    console.print(table)
    first = next(iter(rows.values()))
    console.print(f"BLEU: {first['signature']}; de-tokenised: {first['signature_detokenised']}", style="dim")


app.info.help = f"emnat {__version__}: parallel text in, a one-pass translation model out."
