"""Lines in, translations out, by a teacher or a student: what `emnat.load` gives and every command uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from emnat import world
from emnat.artifacts import MANIFEST, check_artifact
from emnat.config import MOST_BEAMS, Decode, NarDecoder
from emnat.data.store import Ints
from emnat.decoding.engine import Engine
from emnat.decoding.exported import ENCODER_FILE, ExportedEngine, ExportedStudent
from emnat.errors import UserError
from emnat.models import AnyModel, Teacher, describe_model, load_model
from emnat.progress import log
from emnat.text import TextPipeline, load_pipeline

REFEREE = "referee"  # the name of the rescoring model's files in a student's directory


@dataclass(frozen=True)
class Translator:
    """A model with its text pipeline. A student may have a referee, which chooses among length candidates."""

    model: AnyModel | ExportedStudent
    pipeline: TextPipeline
    device: torch.device
    referee: Teacher | None = None
    settings: Decode = Decode()
    precision: str = "auto"

    def translate(
        self,
        lines: Iterable[str],
        decoder: NarDecoder | None = None,
        length_candidates: int = 1,
        rescore: bool | None = None,
        beam: int | None = None,
    ) -> list[str]:
        """One translation for each line; an empty line stays empty.

        Students: `decoder` is argmax, dedup or odd (the default), and with several `length_candidates` the referee
        chooses unless `rescore` is false. Teachers: `beam` (1 is greedy).
        """
        if isinstance(lines, str):
            raise UserError("translate takes a list of lines: [line] for a single one.")
        lines = list(lines)
        return list(self.stream(lines, decoder, length_candidates, rescore, beam, block=max(1, len(lines))))

    def stream(
        self,
        lines: Iterable[str],
        decoder: NarDecoder | None = None,
        length_candidates: int = 1,
        rescore: bool | None = None,
        beam: int | None = None,
        block: int = 1_000,
    ) -> Iterator[str]:
        """Like `translate`, for input of any length: reads `block` lines, writes theirs, reads on."""
        is_teacher = isinstance(self.model, Teacher)
        if is_teacher and (decoder or length_candidates > 1 or rescore):
            raise UserError("this is a teacher: a decoder, several lengths and rescoring are for students.")
        if not is_teacher and beam is not None:
            raise UserError("this is a student: it has no beam; it can try several lengths.")
        numbered = enumerate(lines, 1)
        while lines_of_block := list(islice(numbered, block)):
            sources = [self._encode(line, number) for number, line in lines_of_block]
            for ids in self.translate_ids(sources, decoder, length_candidates, rescore, beam):
                yield self.pipeline.detokenise(self.pipeline.decode_target(ids)) if len(ids) else ""

    def translate_ids(
        self,
        sources: Sequence[Sequence[int] | Ints],
        decoder: NarDecoder | None = None,
        length_candidates: int = 1,
        rescore: bool | None = None,
        beam: int | None = None,
        exact_lengths: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """The same for ids; `exact_lengths` prescribes every output's length (for the synthetic experiments)."""
        if decoder is not None and decoder not in get_args(NarDecoder):
            raise UserError(f"decoder = {decoder!r}: there are {', '.join(get_args(NarDecoder))}.")
        counts = [count for count in (length_candidates, beam) if count is not None]
        if not all(isinstance(count, int | np.integer) and 1 <= count <= MOST_BEAMS for count in counts):
            raise UserError(f"length_candidates = {length_candidates}, beam = {beam}: from 1 to {MOST_BEAMS:,}.")
        exact = None if exact_lengths is None else np.array(exact_lengths, np.int64)
        if isinstance(self.model, Teacher):
            return self.engine.search_best(sources, beam or self.settings.beam, exact)
        way = decoder or self.settings.decoder, length_candidates, self._is_rescored(length_candidates, rescore), exact
        if isinstance(self.model, ExportedStudent):
            return ExportedEngine(self.model, self.referee, self.settings).one_pass(sources, *way)
        return self.engine.one_pass(sources, *way)

    @cached_property
    def engine(self) -> Engine:
        """The model as it is when first asked for: what is trained further afterwards needs another translator."""
        if isinstance(self.model, ExportedStudent):
            raise UserError("an exported student translates and does nothing else: use the run that it comes from.")
        return Engine(self.model, self.referee, self.device, self.precision, self.settings)

    def _is_rescored(self, candidates: int, rescore: bool | None) -> bool:
        if rescore and self.referee is None:
            raise UserError("this model has no referee to rescore with: use the run's directory, or do without.")
        return self.referee is not None and candidates > 1 and rescore is not False

    def _encode(self, line: str, number: int) -> list[int]:
        try:
            line.encode()
        except (AttributeError, UnicodeEncodeError):  # no string, or one with lone surrogates
            raise UserError(f"line {number}: no text (got {line!r}).") from None
        ids = self.pipeline.encode_source(line)
        limit = self.model.max_tokens
        if len(ids) > limit:
            log.warning("line %d: %d tokens, but the model reads %d: the rest was cut off.", number, len(ids), limit)
        return ids[:limit]


def load_translator(directory: str | Path, device: str = "auto", settings: Decode | None = None) -> Translator:
    """From a model directory, also an exported one, or from a run (its final student)."""
    folder = model_folder(Path(directory))
    if (folder / MANIFEST).exists():
        check_artifact(folder)
    exported = (folder / ENCODER_FILE).exists()
    chosen = world.choose_device("cpu" if exported else device)
    described = describe_model(folder)
    pipeline = load_pipeline(folder, described.text)
    pieces, wanted = len(pipeline.vocabulary), described.vocabulary
    if pieces != wanted:
        raise UserError(f"{folder}: the tokenizer has {pieces} pieces, but the model expects {wanted}.")
    model: AnyModel | ExportedStudent
    if exported:
        model = ExportedStudent(folder, described.vocabulary, described.max_tokens)
    else:
        model = load_model(folder, chosen).model
    referee = load_model(folder, chosen, REFEREE).model if (folder / f"{REFEREE}.json").exists() else None
    if referee is not None and not isinstance(referee, Teacher):
        raise UserError(f"{folder}: its referee is no teacher: restore {REFEREE}.json and {REFEREE}.safetensors.")
    return Translator(model, pipeline, chosen, referee, settings or described.decode)


def model_folder(directory: Path) -> Path:
    """Of a run, the directory of its final student; of a model, its own."""
    if not directory.is_dir():
        raise UserError(f"{directory}: not a directory: name a run or a model in one (relative to {Path.cwd()}).")
    if (directory / "model.bin").exists():
        raise UserError(f"{directory}: a model of CTranslate2: load it with that, or name the teacher it was made of.")
    if (directory / "model" / "config.json").exists():
        return directory / "model"
    if (directory / "contrast").exists():
        models = f"{directory / 'contrast/teacher'} or {directory / 'contrast/student'}"
        raise UserError(f"{directory}: a synthetic experiment has two models: name {models}.")
    if (directory / "config.toml").exists():
        raise UserError(f"{directory}: this run has no finished model yet: continue it with the command that began it.")
    return directory
