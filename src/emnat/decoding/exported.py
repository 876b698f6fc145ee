"""Students exported for ONNX Runtime (export/onnx_student.py): the fast way to translate on a CPU.

Shapes: B sources, C length candidates of each, N = B·C, T positions, L lengths, 3 best labels of each position.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from emnat import world
from emnat.artifacts import inside
from emnat.config import Decode, NarDecoder
from emnat.data import collate_sources, plan_decoding
from emnat.data.store import Ints
from emnat.decoding.beam import length_penalty
from emnat.decoding.lengths import length_candidates
from emnat.decoding.odd import best_path
from emnat.decoding.repeats import collapse_repeats
from emnat.errors import UserError
from emnat.models import Teacher

ENCODER_FILE, DECODER_FILE = "encoder.onnx", "decoder.onnx"
_TOKENS = 1024  # of a batch, over all candidates: sorted by length, small batches hold little padding
Floats = npt.NDArray[np.float32]


class ExportedStudent:
    """Two sessions of ONNX Runtime; what they compute, in numpy."""

    kind = "nat"

    def __init__(self, folder: Path, vocabulary: int, max_tokens: int, threads: int | None = None) -> None:
        self.vocabulary, self.max_tokens, self._folder = vocabulary, max_tokens, folder
        self._encoder, self._decoder = (
            _session(inside(folder, name), threads) for name in (ENCODER_FILE, DECODER_FILE)
        )

    def encode(self, source_BS: Ints, lengths_B: Ints) -> tuple[Floats, Floats]:
        """The encoded sources, and scores of the lengths 1, 2, … (B, L)."""
        memory_BSD, scores_BL = self._run(self._encoder, {"source": source_BS, "source_lengths": lengths_B})
        self._expect(len(memory_BSD) == len(source_BS) and scores_BL.shape == (len(source_BS), self.max_tokens))
        return memory_BSD, scores_BL

    def propose(self, memory_NSD: Floats, source_lengths_N: Ints, lengths_N: Ints) -> tuple[Floats, Ints]:
        """The best three labels of every position, in falling order: their scores and ids, both (N, T, 3)."""
        inputs = {"memory": memory_NSD, "source_lengths": source_lengths_N, "target_lengths": lengths_N}
        scores_NT3, labels_NT3 = self._run(self._decoder, inputs)
        self._expect(scores_NT3.shape == labels_NT3.shape == (len(lengths_N), lengths_N.max(), 3))
        self._expect(labels_NT3.min() >= 0 and labels_NT3.max() < self.vocabulary)
        return scores_NT3, labels_NT3

    def _run(self, session: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
        try:
            first, second = session.run(None, inputs)
        except Exception as error:  # ONNX Runtime has no common base class for its errors
            if "Failed to allocate memory" in str(error):
                raise MemoryError from None
            raise self._not_a_student(str(error).splitlines()[0]) from None
        return first, second

    def _expect(self, right: bool) -> None:
        if not right:
            raise self._not_a_student("what they compute has another shape")

    def _not_a_student(self, reason: str) -> UserError:
        return UserError(f"{self._folder}: its graphs are not those of a student ({reason}): export it again.")


class ExportedEngine:
    """Batches of ids in, ids out (see Engine)."""

    def __init__(self, student: ExportedStudent, referee: Teacher | None, settings: Decode) -> None:
        self._student, self._referee, self._settings = student, referee, settings

    def one_pass(
        self,
        sources: Any,
        decoder: NarDecoder,
        candidates: int,
        rescored: bool,
        exact_lengths: Ints | None,
    ) -> list[list[int]]:
        if candidates > 1 and not rescored:
            remedy = "export the whole run" if self._referee is None else "let it rescore"
            raise UserError(f"an exported student cannot choose among several lengths itself, a referee can: {remedy}.")
        results: list[list[int]] = [[] for _ in sources]
        lengths = np.array([len(ids) for ids in sources], np.int64)
        present = np.flatnonzero(lengths)
        tokens = min(self._settings.tokens or _TOKENS, _TOKENS)  # what was set may have been meant for a GPU
        for batch in plan_decoding(lengths[present], lambda longest: max(1, tokens // (longest * candidates))):
            indices = present[batch]
            exact = None if exact_lengths is None else exact_lengths[indices]
            tokens_BT, lengths_B = self._translate(*collate_sources(sources, indices), decoder, candidates, exact)
            for index, row, length in zip(indices, tokens_BT.tolist(), lengths_B.tolist(), strict=True):
                results[index] = row[:length]
        return results

    @torch.inference_mode()
    def _translate(
        self,
        source_BS: torch.Tensor,
        source_lengths_B: torch.Tensor,
        decoder: NarDecoder,
        candidates: int,
        exact_lengths_B: Ints | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        memory, length_scores = self._student.encode(source_BS.numpy(), source_lengths_B.numpy())
        lengths_BC = length_candidates(torch.from_numpy(length_scores), candidates)
        if exact_lengths_B is not None:
            lengths_BC = torch.from_numpy(exact_lengths_B)[:, None].expand_as(lengths_BC)
        lengths_N = lengths_BC.flatten()
        repeat = partial(np.repeat, repeats=candidates, axis=0) if candidates > 1 else np.asarray
        scores_NT3, labels_NT3 = map(
            torch.from_numpy, self._student.propose(repeat(memory), repeat(source_lengths_B.numpy()), lengths_N.numpy())
        )
        if decoder == "odd":
            tokens_NT, _ = best_path(scores_NT3, labels_NT3, lengths_N)
        else:
            inside_NT = torch.arange(labels_NT3.shape[1]) < lengths_N[:, None]
            tokens_NT = labels_NT3[..., 0].masked_fill(~inside_NT, 0)
            if decoder == "dedup":
                tokens_NT, lengths_N = collapse_repeats(tokens_NT, lengths_N)
        if candidates == 1:
            return tokens_NT, lengths_N
        assert self._referee is not None
        log_probs_N = self._referee.log_prob(source_BS, source_lengths_B, tokens_NT, lengths_N)
        judged_BC = (log_probs_N / length_penalty(lengths_N + 1, self._settings.length_penalty)).view_as(lengths_BC)
        best_B = torch.arange(len(lengths_BC)) * candidates + judged_BC.argmax(dim=1)
        return tokens_NT[best_B], lengths_N[best_B]


def _session(path: Path, threads: int | None) -> Any:
    try:
        import onnxruntime  # noqa: PLC0415  # it comes with the extra [export]
    except ImportError:
        raise UserError(f"{path}: reading it needs ONNX Runtime: pip install 'emnat[export]'.") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or world.cores()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Threads that go on spinning after one session's turn would take the cores from the other session.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # An addition and a normalisation are faster than the operator that does both.
    unwanted = ["SkipLayerNormFusion"]
    try:
        content = path.read_bytes()
        if b"location" in content:  # the key under which a graph names other files that hold its weights; ours do not
            raise UserError(f"{path}: wants to read other files, which an exported student does not.")
        return onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"], disabled_optimizers=unwanted
        )
    except (UserError, OSError):
        raise
    except Exception as error:  # ONNX Runtime has no common base class for its errors
        raise UserError(f"{path}: not a graph that ONNX Runtime can read ({str(error).splitlines()[0]}).") from None
