"""The steps of Algorithm 1. Each makes one artifact of the run, or finds that it is there already.

Because of that, running the whole algorithm again is how a run is continued. Shapes: N sources, K candidates.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from emnat import interrupt, world
from emnat.artifacts import check_artifact, clear_folder, content_digest, read_facts, scratch, seal, write_atomically
from emnat.candidates import (
    Candidates,
    Lists,
    Quality,
    are_same,
    by_source,
    complete,
    join_scores,
    padded,
    score,
    unpadded,
    with_incumbents,
)
from emnat.config import Model
from emnat.data import (
    EvaluationSet,
    Sequences,
    SequenceWriter,
    concatenate,
    load_evaluation_set,
    prepare_corpus,
    reported_set,
)
from emnat.data.store import Floats, Ints
from emnat.decoding import Translator
from emnat.decoding.engine import Engine, halved_until_it_fits
from emnat.decoding.translator import REFEREE, load_translator
from emnat.errors import UserError
from emnat.evaluation import (
    log_probs_of_candidates,
    measure_latency,
    measure_student,
    measure_teacher,
    multimodality,
    ncm_of_outputs,
    validation_score,
)
from emnat.models import NAT, Teacher, build_model, load_model, save_model
from emnat.models.growth import begin_from, can_begin_from
from emnat.progress import Work, log
from emnat.selection import select_candidates
from emnat.text import TextPipeline, load_pipeline
from emnat.text.pipeline import VOCABULARY_FILE
from emnat.training import Examples, train
from emnat.workspace import Run

_UNSEEN = 1_000  # validation sources that show what a student makes of sentences it has not learned
_PART, _PART_ON_CPU = 20_000, 2_000  # sources whose decoding is saved at once: what an interruption can cost
Result = TypeVar("Result")


@dataclass(frozen=True)
class Corpus:
    """The prepared data."""

    folder: Path
    pipeline: TextPipeline
    sources: Sequences
    truth: Targets

    @cached_property
    def valid(self) -> EvaluationSet:
        return load_evaluation_set(self.folder, "valid")

    @cached_property
    def test(self) -> EvaluationSet:
        return load_evaluation_set(self.folder, reported_set(self.folder))


@dataclass(frozen=True)
class Targets:
    """One target for every training source, by the artifact that holds them; opened where they are needed."""

    artifact: str
    folder: Path

    @cached_property
    def sequences(self) -> Sequences:
        return Sequences(self.folder, "train.target")


@dataclass(frozen=True)
class Trained:
    """A trained model, by the artifact that holds it; loaded where it is needed, so that few are in memory."""

    artifact: str


def prepare(run: Run) -> Corpus:
    """Text → ids, once per run."""
    if run.artifact("data").exists():
        log.info("data: prepared before; the text files are not read again.")
    folder = run.build("data", [], partial(prepare_corpus, run.config))
    _refuse_another_corpus(run, folder)
    log.info("data: %s", ", ".join(f"{k} {v}" for k, v in read_facts(folder)["train"].items()))
    pipeline = load_pipeline(folder, run.config.text)
    truth = Targets("data", folder)
    return Corpus(folder, pipeline, Sequences(folder, "train.source"), truth)


def _refuse_another_corpus(run: Run, folder: Path) -> None:
    """Data that was lost and made again has to be what everything else in the run was made from."""
    known, found = run.directory / "data.sha256", content_digest(folder)
    written = known.read_bytes().decode("ascii", "replace") if known.exists() else None
    if written is None:
        write_atomically(known, found.encode())
    elif not re.fullmatch("[0-9a-f]{64}", written):
        raise UserError(f"{known}: damaged: delete it and run the command again.")
    elif written != found:
        raise UserError(
            f"{folder}: made from other files than this run was begun with: restore those that data.train, data.valid "
            f"and data.test name, delete {folder} and run again, or choose another run directory (if they are the same "
            f"files, {known} is damaged: delete it)."
        )


def train_teacher(run: Run, corpus: Corpus, stage: str, targets: Targets, start: Trained | None) -> Trained:
    """φ: an AR model of the targets."""
    return _train(run, corpus, f"{stage}/teacher", Teacher.kind, run.config.teacher, targets, start)


def train_student(
    run: Run,
    corpus: Corpus,
    stage: str,
    targets: Targets,
    start: Trained | None,
    settings: Model | None = None,
) -> Trained:
    """θ: a one-pass model of the targets; a larger one starts from the smaller where their sizes allow it."""
    settings = settings or run.config.student
    if run.config.em.warm_start and not can_begin_from(run.config.student, settings):
        log.info("%s/student: begins from scratch: its sizes are no multiples of the smaller student's.", stage)
        start = None
    return _train(run, corpus, f"{stage}/student", NAT.kind, settings, targets, start)


def search(run: Run, corpus: Corpus, stage: str, teacher: Trained) -> Lists:
    """The teacher's k best outputs for every training source (or k draws), with its log-probabilities."""
    name, beams = f"{stage}/candidates", run.config.em.propose_beam

    def make_part(engine: Engine, folder: Path, indices: range, work: Work) -> None:
        log_probs = np.empty((1, len(indices), beams), np.float32)
        lists: list[tuple[Ints, Ints, Ints]] = []  # of every batch: sources, ids of all candidates, how many each has
        ways = {"beam": engine.search, "sample": engine.sample}
        torch.manual_seed(world.derive_seed(run.config.seed, name, indices.start))  # of draws
        find = partial(ways[run.config.em.candidates], corpus.sources, beams=beams)
        for rows, found in _in_batches(engine, find, corpus.sources, indices, beams, work):
            tokens_BKT, lengths_BK, log_probs_BK = complete(found)
            log_probs[0, rows - indices.start] = log_probs_BK.cpu().numpy()
            lists.append((rows, *unpadded(tokens_BKT, lengths_BK)))
        with SequenceWriter(folder, "candidates", len(corpus.pipeline.vocabulary)) as writer:
            writer.extend(*by_source(lists))
        np.save(folder / "scores.npy", log_probs)

    def make(folder: Path) -> dict[str, Any]:
        make_each = partial(make_part, load(run, teacher).engine)
        parts = _in_parts(scratch(folder), len(corpus.sources), f"searching {stage}", run.config.device, make_each)
        concatenate(parts, "candidates", folder)
        join_scores(parts, folder, (1, len(corpus.sources), beams))
        return {"candidates": beams}

    return Lists(name, run.build(name, [teacher.artifact], make))


def distill(run: Run, corpus: Corpus, stage: str, teacher: Trained) -> Targets:
    """Ŷ: the teacher's best output for every training source."""
    name, vocabulary = f"{stage}/distilled", len(corpus.pipeline.vocabulary)
    beams = run.config.em.distill_beam
    lists = search(run, corpus, stage, teacher) if run.config.em.searches_once else None

    def make_part(engine: Engine, folder: Path, indices: range, work: Work) -> None:
        best: dict[int, Ints] = {}
        find = partial(engine.search, corpus.sources, beams=beams)
        for rows, found in _in_batches(engine, find, corpus.sources, indices, beams, work):
            tokens_BT, lengths = found.tokens_MKT[:, 0].cpu().numpy(), found.lengths_MK[:, 0].tolist()
            best |= {int(i): ids[:length] for i, ids, length in zip(rows, tokens_BT, lengths, strict=True)}
        with SequenceWriter(folder, "train.target", vocabulary) as writer:
            for i in indices:
                writer.append(best[i])

    def make(folder: Path) -> dict[str, Any]:
        if lists is None:
            make_each = partial(make_part, load(run, teacher).engine)
            parts = _in_parts(scratch(folder), len(corpus.sources), f"distilling {stage}", run.config.device, make_each)
            concatenate(parts, "train.target", folder)
        else:
            with SequenceWriter(folder, "train.target", vocabulary) as writer:
                for start in range(0, len(corpus.sources), _PART):
                    rows = np.arange(start, min(start + _PART, len(corpus.sources)))
                    writer.extend_padded(*lists.best(rows))
        return {"length": Sequences(folder, "train.target").mean_length}

    return Targets(name, run.build(name, [teacher.artifact if lists is None else lists.artifact], make))


def propose(
    run: Run,
    corpus: Corpus,
    stage: str,
    teacher: Trained,
    student: Trained,
    incumbent: Targets,
) -> Candidates:
    """The teacher's k-best list for every training source, scored by student and teacher; the current targets are
    scored too, since a bounded selection may have to keep them."""
    lists = search(run, corpus, stage, teacher)

    def make(folder: Path) -> dict[str, Any]:
        reader, author = load(run, student), load(run, teacher)
        opinions = partial(score, reader, author, lists, incumbent.sequences, corpus.sources)
        _score_all(run, corpus, folder, f"scoring {stage}", author.engine, opinions, (2, lists.size + 1))
        return {}

    name, parents = f"{stage}/scores", [lists.artifact, student.artifact, teacher.artifact, incumbent.artifact]
    return Candidates(name, run.build(name, parents, make), lists)


def judge(
    run: Run,
    corpus: Corpus,
    stage: str,
    candidates: Candidates,
    incumbent: Targets,
    teacher: Trained,
    referee: Trained,
) -> Candidates:
    """The candidates with the referee's log-probability of each, and of the current targets."""
    if referee == teacher:  # who has been asked already: the last of the candidates' own scores
        return replace(candidates, quality=Quality(candidates.artifact, candidates.folder))
    lists = candidates.lists

    def make(folder: Path) -> dict[str, Any]:
        asked = load(run, referee)

        def quality_of(rows: Ints) -> Floats:
            scored = with_incumbents(*lists.of(rows, asked.device), incumbent.sequences, rows)
            return log_probs_of_candidates([asked], padded(asked.device, corpus.sources, rows), *scored)

        _score_all(run, corpus, folder, f"judging {stage}", asked.engine, quality_of, (1, lists.size + 1))
        return {}

    name, parents = f"{stage}/quality", [lists.artifact, incumbent.artifact, referee.artifact]
    return replace(candidates, quality=Quality(name, run.build(name, parents, make)))


def _score_all(
    run: Run,
    corpus: Corpus,
    folder: Path,
    name: str,
    engine: Engine,
    opinions: Callable[[Ints], Floats],
    shape: tuple[int, int],
) -> None:
    """Write the opinions about all sources, (scorers, N, K+1), from those about some, (scorers, B, K+1)."""
    scorers, columns = shape

    def make_part(folder: Path, indices: range, work: Work) -> None:
        scores = np.empty((scorers, len(indices), columns), np.float32)
        for rows, found in _in_batches(engine, opinions, corpus.sources, indices, columns - 1, work):
            scores[:, rows - indices.start] = found
        np.save(folder / "scores.npy", scores)

    parts = _in_parts(scratch(folder), len(corpus.sources), name, run.config.device, make_part)
    join_scores(parts, folder, (scorers, len(corpus.sources), columns))


def select(
    run: Run, corpus: Corpus, stage: str, candidates: Candidates, incumbent: Targets, bounds: Candidates | None
) -> Targets:
    """Y^{t+1}: one candidate per source, by the rule, and no worse than the incumbents of `bounds`."""
    name = f"{stage}/targets"

    def make(folder: Path) -> dict[str, Any]:
        column, count = candidates.incumbent_column, len(corpus.sources)
        changed = kept = 0  # by what was chosen, not by its column: the incumbent may stand in the list as well
        with SequenceWriter(folder, "train.target", len(corpus.pipeline.vocabulary)) as writer:
            for start in range(0, count, _PART):
                rows = slice(start, min(start + _PART, count))
                scores, lengths = candidates.scores.of(rows), candidates.lengths(incumbent.sequences, rows)
                part_bounds = None if bounds is None else bounds.incumbent_quality[rows]
                in_columns = partial(candidates.in_columns, incumbent.sequences, rows)
                chosen = in_columns(select_candidates(scores, lengths, run.config.em, part_bounds, column))
                writer.extend_padded(*chosen)
                best = np.zeros(len(lengths), np.int64)  # of a search the first; draws have no order
                if run.config.em.candidates == "sample":
                    best = scores.teacher[:, :column].argmax(axis=1)
                changed += int((~are_same(chosen, in_columns(best))).sum())
                kept += int(are_same(chosen, in_columns(np.full_like(best, column))).sum())
        return {
            "not the teacher's best": changed / count,
            "kept incumbent": kept / count,
            "length": Sequences(folder, "train.target").mean_length,
        }

    qualities = [each.quality.artifact for each in (candidates, bounds) if each and each.quality]
    parents = list(dict.fromkeys([candidates.artifact, incumbent.artifact, *qualities]))
    folder = run.build(name, parents, make)
    log.info("%s: %s", name, ", ".join(f"{k} {v:.3f}" for k, v in read_facts(folder).items()))
    return Targets(name, folder)


def measure(
    run: Run,
    corpus: Corpus,
    stage: str,
    teacher: Trained | None,
    student: Trained,
    referee: Trained,
    learned: Targets,
) -> float:
    """Everything the report shows about an iteration; returns the validation score that EM goes by."""
    name = f"{stage}/measures"

    def make(folder: Path) -> dict[str, Any]:
        lowercase = run.config.evaluate.lowercase
        translator = load(run, student, referee)
        cm, ncm = multimodality(translator, corpus.sources, learned.sequences, f"NCM {stage}")
        rows, outputs = measure_student(translator, corpus.test, lowercase)
        valid = validation_score(translator, corpus.valid, len(corpus.valid.sources), run.config.em.measure, lowercase)
        result: dict[str, Any] = {"validation": valid, "cm": cm, "ncm": ncm, "student": rows}
        result |= {"hardware": world.describe(translator.device), "torch": torch.__version__}
        if teacher is not None:
            author = load(run, teacher)
            result["teacher"], teacher_outputs = measure_teacher(author, corpus.test, lowercase)
            unseen = list(islice(corpus.valid.source_ids, _UNSEEN))
            written = author.translate_ids(unseen, beam=run.config.em.distill_beam)
            result["ncm_unseen"] = ncm_of_outputs(translator, unseen, written, f"NCM {stage}, unseen")
            outputs |= teacher_outputs
        for decoder, ids in outputs.items():
            lines = "".join(corpus.pipeline.decode_target(line) + "\n" for line in ids)
            write_atomically(folder / f"{decoder}.txt", lines.encode())
        write_atomically(folder / "measures.json", json.dumps(result, indent=1).encode())
        return {"validation": valid, "ncm": ncm}

    parents = [student.artifact, referee.artifact, learned.artifact] + ([teacher.artifact] if teacher else [])
    facts = read_facts(run.build(name, parents, make))
    log.info("%s: validation %.2f, NCM %.4f", stage, facts["validation"], facts["ncm"])
    return float(facts["validation"])


def publish(run: Run, corpus: Corpus, name: str, teacher: Trained, student: Trained, referee: Trained) -> Path:
    """The model directory users load: the student, the referee that rescores for it, and how fast they are."""

    def make(folder: Path) -> dict[str, Any]:
        for trained, file_name in ((student, "model"), (referee, REFEREE)):
            model = load_model(run.artifact(trained.artifact), torch.device("cpu")).model
            save_model(model, folder, run.config.text, run.config.decode, file_name, half=_stores_half(run))
        shutil.copyfile(corpus.folder / VOCABULARY_FILE, folder / VOCABULARY_FILE)
        timed = corpus.test.source_ids, run.config.evaluate.latency_sentences, run.config.evaluate.latency_runs
        latency = measure_latency([load(run, student, referee), load(run, teacher)], *timed)
        write_atomically(folder / "latency.json", json.dumps(latency, indent=1).encode())
        return {"student": student.artifact}

    return run.build(name, [student.artifact, referee.artifact, teacher.artifact], make)


def load(run: Run, trained: Trained, referee: Trained | None = None) -> Translator:
    translator = load_translator(run.artifact(trained.artifact), run.config.device, run.config.decode)
    rescorer = load_model(run.artifact(referee.artifact), translator.device).model if referee else None
    assert rescorer is None or isinstance(rescorer, Teacher)
    return replace(translator, precision=run.config.precision, referee=rescorer)


def _stores_half(run: Run) -> bool:
    """What was trained and decodes in bf16 loses nothing in float16, and takes half the disk."""
    return world.uses_bf16(world.choose_device(run.config.device), run.config.precision)


def _train(
    run: Run, corpus: Corpus, name: str, kind: str, settings: Model, targets: Targets, start: Trained | None
) -> Trained:
    config = run.config
    predecessor = start if config.em.warm_start else None
    training = settings.training if predecessor is None else settings.training.from_predecessor()

    def make(folder: Path) -> dict[str, Any]:
        device = world.choose_device(config.device)
        seed = world.derive_seed(config.seed, name)
        torch.manual_seed(seed)
        model = build_model(kind, settings, len(corpus.pipeline.vocabulary), config.text.max_tokens).to(device)
        if predecessor is not None:
            begin_from(load_model(run.artifact(predecessor.artifact), device).model, model)
        examples = Examples(corpus.sources, targets.sequences)

        def validate() -> float:
            translator = Translator(model, corpus.pipeline, device, None, config.decode, config.precision)
            count, by = training.validation_sentences, training.validate_by
            return validation_score(translator, corpus.valid, count, by, config.evaluate.lowercase)

        scalars = run.directory / "tensorboard" / name.replace("/", "-")
        facts = train(
            model,
            examples,
            validate,
            training,
            seed=seed,
            device=device,
            precision=config.precision,
            folder=scratch(folder),
            name=name,
            scalars=scalars,
        )
        # A run may be continued with other decode.tokens; they do not make this another model.
        decode = config.decode.model_copy(update={"tokens": None})
        save_model(model, folder, config.text, decode, half=_stores_half(run))
        shutil.copyfile(corpus.folder / VOCABULARY_FILE, folder / VOCABULARY_FILE)
        return {"seed": seed} | facts  # with steps and epochs, the state of every generator

    parents = [targets.artifact] + ([predecessor.artifact] if predecessor else [])
    run.build(name, parents, make)
    return Trained(name)


def _in_parts(
    folder: Path, count: int, name: str, device: str, make_part: Callable[[Path, range, Work], None]
) -> list[Path]:
    """Do a corpus-sized job part by part; parts that an earlier process finished are taken as they are."""
    parts, size = [], _PART if world.choose_device(device).type == "cuda" else _PART_ON_CPU
    with Work(name, count) as work:
        for start in range(0, count, size):
            indices = range(start, min(start + size, count))
            part = folder / f"{indices.start:09d}-{indices.stop:09d}"
            if part.exists():
                check_artifact(part)
                work.skip(len(indices))
            else:
                unfinished = part.with_suffix(".partial")
                unfinished.mkdir(parents=True, exist_ok=True)
                clear_folder(unfinished)
                make_part(unfinished, indices, work)
                seal(unfinished, part, part.name, {}, 0, {}, 0.0)
            parts.append(part)
    return parts


def _in_batches(
    engine: Engine, function: Callable[[Ints], Result], sources: Sequences, indices: range, beams: int, work: Work
) -> Iterator[tuple[Ints, Result]]:
    """What a function finds for some sources, in batches of similar length."""
    started = time.monotonic()
    done = 0
    for batch in engine.plan(sources.part(indices).lengths, beams):
        for rows, found in halved_until_it_fits(batch + indices.start, function):
            interrupt.stop_if_asked()  # the parts before this one are saved
            yield rows, found
            done += len(rows)
            work.advance(len(rows), f"{done / (time.monotonic() - started):,.0f} sentences/s")
