"""ODD against brute force over the whole vocabulary."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emnat.decoding import odd_decode
from emnat.errors import UserError


def brute_force(scores_TV: torch.Tensor) -> float:
    """The best score of any sequence without equal neighbours."""
    length, labels = scores_TV.shape
    return max(
        sum(float(scores_TV[t, label]) for t, label in enumerate(path))
        for path in itertools.product(range(labels), repeat=length)
        if all(a != b for a, b in itertools.pairwise(path))
    )


def test_importing_it_leaves_pytorch_as_it_is() -> None:
    """Whoever decodes for models of another kind keeps the kinds of attention that they use."""
    asked = "torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.cudnn_sdp_enabled()"
    program = f"import torch; from emnat.decoding import odd_decode; assert {asked}; from emnat.models import NAT; "
    program += f"from emnat.config import Model; NAT(Model(hidden=8, heads=2), 9, 5); assert not ({asked})"  # its own
    subprocess.run([sys.executable, "-c", program], check=True)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_finds_the_optimum(data: st.DataObject) -> None:
    labels = data.draw(st.integers(2, 6))
    length = data.draw(st.integers(1, 5))
    lengths = data.draw(st.lists(st.integers(1, length), min_size=1, max_size=3))
    levels = data.draw(st.sampled_from([2, 4, 1000]))  # few levels: many ties
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    scores_BTV = torch.randint(0, levels, (len(lengths), length, labels)).double() / levels
    tokens_BT, best_B = odd_decode(scores_BTV, torch.tensor(lengths))
    for scores_TV, tokens, best, size in zip(scores_BTV, tokens_BT.tolist(), best_B.tolist(), lengths, strict=True):
        assert best == pytest.approx(brute_force(scores_TV[:size]))
        assert sum(float(scores_TV[t, tokens[t]]) for t in range(size)) == pytest.approx(best)
        assert all(a != b for a, b in itertools.pairwise(tokens[:size]))
        assert tokens[size:] == [0] * (length - size)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 5), st.integers(1, 5), st.floats(0.1, 0.9), st.integers(0, 2**31))
def test_labels_without_a_chance(labels: int, length: int, share: float, seed: int) -> None:
    """Equal neighbours are worse than anything else, however little is left."""
    torch.manual_seed(seed)
    scores_TV = torch.randn(length, labels).masked_fill(torch.rand(length, labels) < share, -torch.inf)
    tokens_BT, best_B = odd_decode(scores_TV[None], torch.tensor([length]))
    assert best_B.item() == pytest.approx(brute_force(scores_TV))
    assert all(a != b for a, b in itertools.pairwise(tokens_BT[0].tolist()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_numbers_of_any_width_and_with_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    scores_BTV = torch.randn(3, 6, 9).to(dtype).requires_grad_()
    lengths_B = torch.tensor([6, 2, 4])
    tokens_BT, best_B = odd_decode(scores_BTV, lengths_B)
    wanted_BT, wanted_B = odd_decode(scores_BTV.detach().double(), lengths_B)
    assert torch.equal(tokens_BT, wanted_BT)
    assert torch.allclose(best_B.double(), wanted_B)


@pytest.mark.parametrize("shapes", [((4, 9), (4,)), ((2, 4, 9), (3,)), ((2, 4, 9), ())])
def test_other_shapes_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    scores, lengths = shapes
    with pytest.raises(UserError, match=r"of the shape \(B, T, V\)"):
        odd_decode(torch.zeros(scores), torch.ones(lengths, dtype=torch.long))


def test_two_labels_alternate() -> None:
    scores_BTV = torch.tensor([[[0.0, -1.0]] * 5])
    tokens_BT, score_B = odd_decode(scores_BTV, torch.tensor([5]))
    assert tokens_BT.tolist() == [[0, 1, 0, 1, 0]]
    assert score_B.item() == -2.0


def test_logits_and_log_probabilities_give_the_same_tokens() -> None:
    torch.manual_seed(0)
    logits_BTV = torch.randn(4, 7, 30)
    lengths_B = torch.tensor([7, 3, 1, 5])
    from_logits, _ = odd_decode(logits_BTV, lengths_B)
    from_log_probs, _ = odd_decode(logits_BTV.log_softmax(-1), lengths_B)
    assert torch.equal(from_logits, from_log_probs)


def test_padding_changes_nothing() -> None:
    torch.manual_seed(1)
    scores_TV = torch.randn(4, 20)
    alone, alone_score = odd_decode(scores_TV[None], torch.tensor([4]))
    padded = torch.cat([scores_TV, torch.full((6, 20), 100.0)])[None]
    together, score = odd_decode(padded, torch.tensor([4]))
    assert torch.equal(together[:, :4], alone)
    assert torch.equal(score, alone_score)


def test_one_label_is_refused() -> None:
    with pytest.raises(UserError, match="at least 2 labels"):
        odd_decode(torch.zeros(1, 2, 1), torch.tensor([2]))
    tokens_BT, _ = odd_decode(torch.zeros(1, 1, 1), torch.tensor([1]))
    assert tokens_BT.tolist() == [[0]]
