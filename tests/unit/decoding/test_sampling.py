"""Draws against the distribution they are drawn from."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from emnat.decoding.beam import cache_size
from emnat.decoding.sampling import sample
from emnat.models import Teacher
from emnat.text.subwords import CONCAT

SOURCE = torch.tensor([[5, 6, 7], [8, 5, 0]]), torch.tensor([3, 2])


@torch.inference_mode()
def test_frequencies_are_the_probabilities(tiny_teacher: Teacher, seed: int) -> None:
    """Of all outputs of one or two tokens: an end is drawn, forced at the limit, or not allowed at the start."""
    torch.manual_seed(seed)
    count, longest = 20_000, 2
    found = sample(tiny_teacher.state(2, 3, count, cache_size(longest)), *SOURCE, torch.tensor([2, 1]), count)
    for row in range(2):
        source, length = SOURCE[0][row : row + 1, : SOURCE[1][row]], SOURCE[1][row : row + 1]
        drawn = Counter(
            tuple(tokens[:size])
            for tokens, size in zip(found.tokens_MKT[row].tolist(), found.lengths_MK[row].tolist(), strict=True)
        )
        paths = [path for size in (1, 2) for path in itertools.product(range(CONCAT, 9), repeat=size)]
        assert set(drawn) <= set(paths if row == 0 else paths[:5])
        prefixes = {path: _prefix_probability(tiny_teacher, source, length, path) for path in paths}
        first = sum(prefixes[path] for path in paths[:5])  # what is left when an end is not allowed
        for path in paths if row == 0 else paths[:5]:
            wanted = prefixes[path] / first
            if row == 0 and len(path) == 1:
                ending = tiny_teacher.log_prob(source, length, torch.tensor([path]), torch.tensor([1])).exp().item()
                wanted = ending / first
            assert drawn[path] / count == pytest.approx(wanted, abs=0.02), path


@torch.inference_mode()
def test_scores_are_log_probabilities(tiny_teacher: Teacher, seed: int) -> None:
    torch.manual_seed(seed)
    found = sample(tiny_teacher.state(2, 3, 7, cache_size(4)), *SOURCE, torch.tensor([4, 3]), 7)
    wanted = tiny_teacher.log_prob(*SOURCE, found.tokens_MKT.flatten(0, 1), found.lengths_MK.flatten())
    assert torch.allclose(found.log_probs_MK.flatten(), wanted, atol=1e-4)
    assert found.lengths_MK.min() >= 1
    assert (found.lengths_MK <= torch.tensor([[4], [3]])).all()


def _prefix_probability(teacher: Teacher, source: torch.Tensor, length: torch.Tensor, path: tuple[int, ...]) -> float:
    """p(path …): the probability of the tokens without an end, as a product of next-token probabilities."""
    state = teacher.state(1, source.shape[1], 1, cache_size(len(path)))
    state.begin(source, length)
    total, last = 0.0, 1
    for position, token in enumerate(path):
        total += state.step(torch.tensor([last]), cache_size(position))[0, token].item()
        last = token
    return float(torch.tensor(total).exp())
