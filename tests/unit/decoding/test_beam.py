"""Beam search against exhaustive enumeration, and cached against uncached decoding."""

from __future__ import annotations

import itertools

import pytest
import torch

from emnat.decoding import BeamSearch, Hypotheses
from emnat.decoding.beam import cache_size, length_penalty
from emnat.models import Teacher
from emnat.models.teacher import TeacherState
from emnat.text.subwords import BOS, CONCAT, EOS

LABELS = range(CONCAT, 9)  # what a tiny teacher can write
SOURCE = torch.tensor([[5, 6, 7], [8, 5, 0]]), torch.tensor([3, 2])
CPU = torch.device("cpu")


def search(teacher: Teacher, beams: int, limits: list[int], alpha: float, exact: bool = False) -> Hypotheses:
    state = teacher.state(2, 3, beams, cache_size(max(limits)))
    beam_search = BeamSearch(state, 2, beams, max(limits), alpha, CPU, captured=False)
    return beam_search.run(*SOURCE, torch.tensor(limits), exact)


def started(teacher: Teacher, beams: int, steps: int) -> TeacherState:
    state = teacher.state(2, 3, beams, steps)
    state.begin(*SOURCE)
    return state


def enumerate_all(teacher: Teacher, row: int, longest: int, alpha: float) -> list[tuple[float, tuple[int, ...]]]:
    """Every sequence of 1 to `longest` labels with its normalised score, best first."""
    source, length = SOURCE[0][row : row + 1, : SOURCE[1][row]], SOURCE[1][row : row + 1]
    scored = []
    for size in range(1, longest + 1):
        paths = list(itertools.product(LABELS, repeat=size))
        tokens = torch.tensor(paths)
        log_prob = teacher.log_prob(source, length, tokens, torch.full((len(paths),), size))
        scored += zip((log_prob / length_penalty(torch.tensor(size + 1.0), alpha)).tolist(), paths, strict=True)
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.4])
@torch.inference_mode()
def test_wide_beam_equals_enumeration(tiny_teacher: Teacher, alpha: float) -> None:
    longest, beams = 3, 5 + 25 + 125
    found = search(tiny_teacher, beams, [longest, longest], alpha)
    for row in range(2):
        wanted = enumerate_all(tiny_teacher, row, longest, alpha)
        assert found.scores_MK[row].tolist() == pytest.approx([score for score, _ in wanted], abs=1e-4)
        for k in range(5):
            length = int(found.lengths_MK[row, k])
            assert found.scores_MK[row, k].item() == pytest.approx(wanted[k][0], abs=1e-4)
            path = tuple(found.tokens_MKT[row, k, :length].tolist())
            again = next(score for score, other in wanted if other == path)
            assert again == pytest.approx(wanted[k][0], abs=1e-4)


@torch.inference_mode()
def test_exact_lengths_search_only_those(tiny_teacher: Teacher) -> None:
    exact = [2, 3]
    found = search(tiny_teacher, 125, exact, 0.6, exact=True)
    for row in range(2):
        size = exact[row]
        wanted = max(entry for entry in enumerate_all(tiny_teacher, row, size, 0.6) if len(entry[1]) == size)
        assert found.lengths_MK[row, 0] == size
        assert found.scores_MK[row, 0].item() == pytest.approx(wanted[0], abs=1e-4)


@torch.inference_mode()
def test_log_probs_are_those_of_the_model(tiny_teacher: Teacher) -> None:
    found = search(tiny_teacher, 4, [6, 6], 0.6)
    tokens_NT, lengths_N = found.tokens_MKT.flatten(0, 1), found.lengths_MK.flatten()
    again = tiny_teacher.log_prob(*SOURCE, tokens_NT, lengths_N)
    assert found.log_probs_MK.flatten().tolist() == pytest.approx(again.tolist(), abs=1e-4)


@torch.inference_mode()
def test_cached_equals_uncached(tiny_teacher: Teacher) -> None:
    """The steps' log-probabilities along a prefix, and then of its end, add up to the whole sequence's."""
    prefix = torch.tensor([[5, 8, 4, 6], [7, 7, 5, 8]])
    state = started(tiny_teacher, 1, 5)
    step = state.step(torch.full((2,), BOS), 1)
    along_prefix = torch.zeros(2)
    for position in range(4):
        along_prefix += step.gather(1, prefix[:, position : position + 1])[:, 0]
        step = state.step(prefix[:, position], seen=5)  # more than there are: the rest is out of sight
        whole = tiny_teacher.log_prob(*SOURCE, prefix[:, : position + 1], torch.full((2,), position + 1))
        assert torch.allclose(along_prefix + step[:, EOS], whole, atol=1e-4)


@torch.inference_mode()
def test_reordered_cache_follows_its_rows(tiny_teacher: Teacher) -> None:
    state = started(tiny_teacher, 2, 4)
    state.step(torch.full((4,), BOS), 1)
    state.step(torch.tensor([5, 6, 7, 8]), 2)
    state.select(torch.tensor([1, 0, 2, 2]), 2)
    reordered = state.step(torch.tensor([4, 4, 4, 4]), 3)
    fresh = started(tiny_teacher, 2, 4)
    fresh.step(torch.full((4,), BOS), 1)
    fresh.step(torch.tensor([6, 5, 7, 7]), 2)
    assert torch.allclose(reordered, fresh.step(torch.tensor([4, 4, 4, 4]), 3), atol=1e-5)
