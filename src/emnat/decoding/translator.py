"""Lines in, translations out, by a teacher or a student: what `emnat.load` gives and every command uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from emnat import world
from emnat.config import Decode, NarDecoder
from emnat.data import collate_sources, plan_decoding
from emnat.data.store import Ints
from emnat.decoding.beam import Hypotheses, beam_search
from emnat.decoding.one_pass import decode_in_one_pass
from emnat.errors import UserError
from emnat.models import AnyModel, Teacher, load_model
from emnat.progress import log
from emnat.text import TextPipeline, load_pipeline

REFEREE = "referee"  # the name of the rescoring model's files in a student's directory


@dataclass
class Translator:
    """A model with its text pipeline. A student may have a referee, which chooses among length candidates."""

    model: AnyModel
    pipeline: TextPipeline
    device: torch.device
    referee: Teacher | None = None
    settings: Decode = Decode()
    precision: str = "auto"

    def translate(
        self,
        lines: Sequence[str],
        decoder: NarDecoder | None = None,
        length_candidates: int = 1,
        rescore: bool | None = None,
        beam: int | None = None,
    ) -> list[str]:
        """One translation for each line; an empty line stays empty.

        Students: `decoder` is argmax, dedup or odd (the default), and with several `length_candidates` the referee
        chooses unless `rescore` is false. Teachers: `beam` (1 is greedy).
        """
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
        results: list[list[int]] = [[] for _ in sources]
        rows = beam or self.settings.beam if isinstance(self.model, Teacher) else length_candidates
        for indices in plan_nonempty(sources, self.settings.tokens // rows, extra=rows // 2):
            source_BS, source_lengths_B = (part.to(self.device) for part in collate_sources(sources, indices))
            exact = torch.tensor([exact_lengths[i] for i in indices]).to(self.device) if exact_lengths else None
            with world.autocast(self.device, self.precision):
                if isinstance(self.model, Teacher):
                    found = self.search(source_BS, source_lengths_B, rows, exact)
                    tokens_BT, lengths_B = found.tokens_MKT[:, 0], found.lengths_MK[:, 0]
                else:
                    tokens_BT, lengths_B = decode_in_one_pass(
                        self.model,
                        source_BS,
                        source_lengths_B,
                        decoder or self.settings.decoder,
                        length_candidates,
                        self._rescorer(length_candidates, rescore),
                        self.settings.length_penalty,
                        exact,
                    )
            for index, tokens, length in zip(indices, tokens_BT.tolist(), lengths_B.tolist(), strict=True):
                results[index] = tokens[:length]
        return results

    def search(
        self, source_BS: Tensor, source_lengths_B: Tensor, beams: int, exact_lengths_B: Tensor | None = None
    ) -> Hypotheses:
        """A teacher's k best outputs."""
        assert isinstance(self.model, Teacher)
        limits_B = exact_lengths_B if exact_lengths_B is not None else self.longest_output(source_lengths_B)
        with torch.inference_mode():
            state = self.model.start(source_BS, source_lengths_B, beams, int(limits_B.max()) + 1)
            return beam_search(state, beams, limits_B, self.settings.length_penalty, exact_lengths_B)

    def longest_output(self, source_lengths_B: Tensor) -> Tensor:
        """Of each sentence by itself, so that its translation does not depend on its batch."""
        wanted_B = source_lengths_B * self.settings.max_length_factor + self.settings.max_length_extra
        return wanted_B.long().clamp(1, self.model.max_tokens)

    def _rescorer(self, candidates: int, rescore: bool | None) -> Teacher | None:
        if rescore and self.referee is None:
            raise UserError("this model has no referee to rescore with: use the run's directory, or rescore=False.")
        return self.referee if candidates > 1 and rescore is not False else None

    def _encode(self, line: str, number: int) -> list[int]:
        ids = self.pipeline.encode_source(line)
        limit = self.model.max_tokens
        if len(ids) > limit:
            log.warning("line %d: %d tokens, but the model reads %d: the rest was cut off.", number, len(ids), limit)
        return ids[:limit]


def plan_nonempty(sources: Sequence[Sequence[int] | Ints], tokens: int, extra: int) -> list[Ints]:
    """Decoding batches of all sources that have a token at all; outputs may be `extra` tokens longer than they."""
    lengths = np.array([len(ids) for ids in sources], np.int64)
    present = np.flatnonzero(lengths)
    return [present[batch] for batch in plan_decoding(lengths[present] + extra, tokens)]


def load_translator(directory: str | Path, device: str = "auto", settings: Decode | None = None) -> Translator:
    """From a model directory, or from a run (its final student)."""
    folder = Path(directory)
    if (folder / "model" / "config.json").exists():
        folder = folder / "model"
    elif (folder / "config.toml").exists():
        raise UserError(f"{folder}: this run has no finished model yet: run 'emnat train' again to continue it.")
    chosen = world.choose_device(device)
    stored = load_model(folder, chosen)
    pipeline = load_pipeline(folder, stored.text)
    pieces, wanted = len(pipeline.vocabulary), stored.model.vocabulary
    if pieces != wanted:
        raise UserError(f"{folder}: the tokenizer has {pieces} pieces, but the model expects {wanted}.")
    referee = load_model(folder, chosen, REFEREE).model if (folder / f"{REFEREE}.json").exists() else None
    assert referee is None or isinstance(referee, Teacher)
    return Translator(stored.model, pipeline, chosen, referee, settings or stored.decode)
