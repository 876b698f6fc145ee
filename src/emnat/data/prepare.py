"""From text files to a prepared corpus: processed, cleaned, split into subwords, stored as ids.

The training text is streamed; only counts and offsets are held in memory.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from emnat import interrupt, world
from emnat.config import Config, Data, Files, Text
from emnat.data.store import Ints, Sequences, SequenceWriter
from emnat.errors import UserError
from emnat.progress import log
from emnat.text import TextPipeline, Vocabulary, read_lines, read_pairs, train_vocabulary
from emnat.text.corpus import Pair
from emnat.text.pipeline import VOCABULARY_FILE, LineProcessor

_HELD_OUT = "held-out.jsonl"
_MOST_WORKERS = 32  # they are fed by one process
_BLOCK = 50_000  # pairs handed to the tokenising processes at once


@dataclass(frozen=True)
class EvaluationSet:
    """A validation or test set: ids for models, text for scores."""

    sources: list[str]  # raw
    references: list[str]  # raw
    processed_references: list[str]  # as the model's own output looks before de-tokenisation
    source_ids: Sequence[Ints]
    target_ids: Sequence[Ints]


def prepare_corpus(config: Config, folder: Path) -> dict[str, Any]:
    """Fill `folder` with the vocabulary and all sets; the result says how many pairs were kept and dropped, and why."""
    _refuse_missing_files(config.data)
    counts = _write_clean_text(config, folder)
    serialized = train_vocabulary(
        lambda: itertools.chain(read_lines(folder / "train.source.txt"), read_lines(folder / "train.target.txt")),
        config.text.subwords,
        config.text.vocabulary,
        world.derive_seed("vocabulary", config.seed),
    )
    (folder / VOCABULARY_FILE).write_bytes(serialized)
    pipeline = TextPipeline(config.text, Vocabulary(serialized, str(folder / VOCABULARY_FILE)))
    if len(pipeline.vocabulary) < config.text.vocabulary:
        log.info("vocabulary: %d pieces are all that this text gives.", len(pipeline.vocabulary))
    counts["too many tokens"] = _encode_training_text(pipeline, folder)
    counts["kept"] -= counts["too many tokens"]
    if not counts["kept"]:
        raise UserError(f"{config.data.train[0]}: no pair is left after cleaning ({_summary(counts)}).")
    facts: dict[str, Any] = {"train": dict(counts), "vocabulary": len(pipeline.vocabulary)}
    held_out = [str(folder / _HELD_OUT)]
    sets = {"valid": held_out if config.data.valid is None else config.data.valid, "test": config.data.test}
    for name, files in sets.items():
        if files:
            facts[name] = _write_evaluation_set(files, name, pipeline, folder)
    return facts


def load_evaluation_set(folder: Path, name: str) -> EvaluationSet:
    sources, references, processed = (
        list(read_lines(folder / f"{name}.{part}.txt")) for part in ("source", "reference", "processed")
    )
    source_ids, target_ids = Sequences(folder, f"{name}.source"), Sequences(folder, f"{name}.target")
    return EvaluationSet(sources, references, processed, source_ids, target_ids)


def reported_set(folder: Path) -> str:
    """What is reported on: the test set, or the validation set where there is no other."""
    return "test" if (folder / "test.source.txt").exists() else "valid"


def evaluation_set_from_pairs(pairs: Iterable[tuple[str, str]], pipeline: TextPipeline) -> EvaluationSet:
    """The same from text that belongs to no run."""
    limit = pipeline.settings.max_tokens
    members = list(pairs)
    if not members:
        raise UserError("there is nothing to evaluate: the files are empty.")
    return EvaluationSet(
        [source for source, _ in members],
        [target for _, target in members],
        [pipeline.lines.target(target) for _, target in members],
        [np.array(pipeline.encode_source(source)[:limit], np.int64) for source, _ in members],
        [np.array(pipeline.encode_target(target)[:limit], np.int64) for _, target in members],
    )


def reason_to_drop(source: str, target: str, settings: Data) -> str | None:
    """Why a processed pair is no good for training, or None."""
    words = len(source.split()), len(target.split())
    if min(words) == 0:
        return "empty"
    if max(words) > settings.max_words:
        return "too long"
    if max(words) > settings.max_ratio * min(words):
        return "length ratio"
    return None


def _refuse_missing_files(data: Data) -> None:
    """Before hours of tokenising, not after."""
    for files in (data.train, data.valid or [], data.test):
        for entry in files:
            for path in [entry] if isinstance(entry, str) else entry:
                if not Path(path).exists():
                    place = "" if Path(path).is_absolute() else f" (paths are relative to {Path.cwd()})"
                    raise UserError(f"{path}: no such file{place}.")


def _write_clean_text(config: Config, folder: Path) -> Counter[str]:
    """Processed training text, without bad pairs; pairs held out for validation go, raw, into a file of their own."""
    counts: Counter[str] = Counter({"read": 0, "kept": 0})
    every = config.data.hold_out
    clean = 0
    write = partial(Path.open, mode="w", encoding="utf-8", newline="\n")
    with (
        write(folder / "train.source.txt") as sources,
        write(folder / "train.target.txt") as targets,
        write(folder / _HELD_OUT) as held_out,
    ):
        for raw, (source, target) in _process_pairs(read_pairs(config.data.train), config.text):
            interrupt.stop_if_asked()
            counts["read"] += 1
            reason = reason_to_drop(source, target, config.data)
            clean += reason is None
            if reason is None and every and clean % every == 0:
                reason = "held out"
                held_out.write(json.dumps(dict(zip(("source", "target"), raw, strict=True))) + "\n")
            counts[reason or "kept"] += 1
            if reason is None:
                sources.write(source + "\n")
                targets.write(target + "\n")
    if not counts["kept"]:
        raise UserError(f"{config.data.train[0]}: no pair is left after cleaning ({_summary(counts)}).")
    if every > clean:
        raise UserError(f"data.hold_out = {every}: of {clean} clean training pairs that takes none: lower it.")
    return counts


def _summary(counts: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in counts.items())


def _process_pairs(pairs: Iterable[Pair], text: Text) -> Iterator[tuple[Pair, Pair]]:
    """Each pair, raw and tokenised; sacremoses is slow, so a large corpus goes through as many processes as cores."""
    pairs = iter(pairs)
    block = list(itertools.islice(pairs, _BLOCK))
    if not text.moses or len(block) < _BLOCK:
        processor = LineProcessor(text)
        for source, target in itertools.chain(block, pairs):
            yield (source, target), (processor.source(source), processor.target(target))
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy PyTorch's threads in an unknown state
    workers = ProcessPoolExecutor(
        min(world.cores(), _MOST_WORKERS), context, initializer=_start_worker, initargs=(text,)
    )
    try:
        while block:
            yield from zip(block, workers.map(_process_in_worker, block, chunksize=500), strict=True)
            block = list(itertools.islice(pairs, _BLOCK))
    except BrokenProcessPool:
        interrupt.stop_if_asked()  # a signal to all may have ended the workers, too
        raise UserError(
            "a tokenising process was killed, for want of memory perhaps: run the command again with more memory or on "
            "fewer cores (taskset -c 0-3 emnat ...): each has a process, of some 250 MB."
        ) from None
    finally:
        workers.shutdown(wait=False, cancel_futures=True)


_worker: LineProcessor


def _start_worker(text: Text) -> None:
    global _worker  # noqa: PLW0603  # a pool worker has no other place to keep its tokeniser
    for number in (signal.SIGINT, signal.SIGTERM):  # they may reach all; it is the parent's to answer
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = LineProcessor(text)


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers, and they would wait for it without end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _process_in_worker(pair: Pair) -> Pair:
    return _worker.source(pair[0]), _worker.target(pair[1])


def _encode_training_text(pipeline: TextPipeline, folder: Path) -> int:
    """Processed text to ids; the text is deleted. Returns how many pairs had too many tokens."""
    limit, size, dropped = pipeline.settings.max_tokens, len(pipeline.vocabulary), 0
    texts = folder / "train.source.txt", folder / "train.target.txt"
    with (
        SequenceWriter(folder, "train.source", size) as sources,
        SequenceWriter(folder, "train.target", size) as targets,
    ):
        for source, target in zip(*map(read_lines, texts), strict=True):
            interrupt.stop_if_asked()
            source_ids, target_ids = (
                pipeline.vocabulary.encode(source),
                pipeline.encode_processed_target(target),
            )
            if max(len(source_ids), len(target_ids)) > limit:
                dropped += 1
                continue
            sources.append(source_ids)
            targets.append(target_ids)
    for path in texts:
        path.unlink()
    return dropped


def _write_evaluation_set(files: Files, name: str, pipeline: TextPipeline, folder: Path) -> dict[str, int]:
    """All lines are kept: a score is over the whole set. What a model cannot read is cut to its positions."""
    limit, size, count = pipeline.settings.max_tokens, len(pipeline.vocabulary), 0
    write = partial(Path.open, mode="w", encoding="utf-8", newline="\n")
    with (
        write(folder / f"{name}.source.txt") as sources,
        write(folder / f"{name}.reference.txt") as references,
        write(folder / f"{name}.processed.txt") as processed,
        SequenceWriter(folder, f"{name}.source", size) as source_ids,
        SequenceWriter(folder, f"{name}.target", size) as target_ids,
    ):
        for source, target in read_pairs(files):
            count += 1
            sources.write(source + "\n")
            references.write(target + "\n")
            processed.write(pipeline.lines.target(target) + "\n")
            source_ids.append(pipeline.encode_source(source)[:limit])
            target_ids.append(pipeline.encode_target(target)[:limit])
    if not count:
        raise UserError(f"{files[0]}: the {name} set is empty.")
    return {"pairs": count}
