"""What only a GPU has: kernels and captured graphs, against the plain implementations."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from emnat.config import Decode, Model
from emnat.decoding import odd_decode
from emnat.decoding.engine import Engine
from emnat.models import NAT, Teacher

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
SETTINGS = Model(encoder_layers=2, decoder_layers=2, hidden=64, filter=128, heads=4)
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("labels", [3, 50, 4097, 32_000])
@pytest.mark.parametrize("levels", [2, 8, None])
def test_odd_kernels_equal_the_reference(seed: int, labels: int, levels: int | None) -> None:
    """With few levels nearly all scores tie; without levels none do. Sums are exact: all are multiples of 2^-16."""
    torch.manual_seed(seed)
    for length in (1, 2, 17, 40):
        if levels is None:
            scores_BTV = torch.rand(9, length, labels).argsort(-1).float() / 2**16
        else:
            scores_BTV = torch.randint(0, levels, (9, length, labels)).float() / 2**16
        scores_BTV[:, :, : (labels - 3) // 4] = -torch.inf
        lengths_B = torch.randint(0, length + 1, (9,))
        wanted_BT, wanted_B = odd_decode(scores_BTV, lengths_B)
        tokens_BT, score_B = (part.cpu() for part in odd_decode(scores_BTV.to(GPU), lengths_B.to(GPU)))
        assert torch.equal(score_B, wanted_B)
        if levels is None:  # otherwise, several sequences are best
            assert torch.equal(tokens_BT, wanted_BT)
        inside_BT = torch.arange(length) < lengths_B[:, None]
        picked_BT = scores_BTV.gather(2, tokens_BT[..., None])[..., 0]
        assert torch.equal(torch.where(inside_BT, picked_BT, 0.0).sum(1), wanted_B)
        assert not ((tokens_BT[:, 1:] == tokens_BT[:, :-1]) & inside_BT[:, 1:]).any()


def test_odd_kernels_where_labels_have_no_chance(seed: int) -> None:
    torch.manual_seed(seed)
    scores_BTV = torch.randn(64, 9, 50).masked_fill(torch.rand(64, 9, 50) < 0.98, -torch.inf)
    lengths_B = torch.randint(0, 10, (64,))
    _, wanted_B = odd_decode(scores_BTV, lengths_B)
    tokens_BT, score_B = (part.cpu() for part in odd_decode(scores_BTV.to(GPU), lengths_B.to(GPU)))
    assert torch.allclose(score_B, wanted_B)
    assert 0 < wanted_B.isinf().sum() < 64
    inside_BT = torch.arange(9) < lengths_B[:, None]
    assert not ((tokens_BT[:, 1:] == tokens_BT[:, :-1]) & inside_BT[:, 1:]).any()


def test_replayed_searches_and_passes_equal_those_of_a_cpu(seed: int) -> None:
    """The first call of a shape runs plainly, the second is captured, the third replayed: all with the same result."""
    torch.manual_seed(seed)
    models = [kind(SETTINGS, 40, 30).eval() for kind in (Teacher, NAT)]
    with torch.no_grad():  # clear preferences, so that rounding decides nothing
        for model in models:
            model.embedding.tokens *= 4
    (teacher, student), (own_teacher, own_student) = ([copy.deepcopy(m).to(d) for m in models] for d in (GPU, CPU))
    engines = [Engine(model, teacher, GPU, "float32", Decode()) for model in (teacher, student)]
    plain = [Engine(model, own_teacher, CPU, "float32", Decode()) for model in (own_teacher, own_student)]
    random = np.random.default_rng(seed)
    for _ in range(4):
        sources = [random.integers(5, 40, size) for size in (3, 12, 7)]
        wanted = plain[0].search_best(sources, 4, None)
        assert [engines[0].search_best(sources, 4, None) for _ in range(3)] == [wanted] * 3
        wanted = plain[1].one_pass(sources, "odd", 5, True, None)
        assert [engines[1].one_pass(sources, "odd", 5, True, None) for _ in range(3)] == [wanted] * 3


def test_a_batch_that_does_not_fit_is_halved() -> None:
    """Of a search that asks for more memory than there is."""
    teacher = Teacher(SETTINGS, 32_000, 30).to(GPU).eval()
    engine = Engine(teacher, None, GPU, "auto", Decode())
    engine._memory = 1e15  # type: ignore[misc]  # an estimate that is far too high
    torch.cuda.empty_cache()
    held = torch.empty(torch.cuda.mem_get_info()[0] - 2**32, dtype=torch.uint8, device=GPU)  # 4 GiB are left
    sources = [np.arange(5, 15)] * 2600  # the scores of one step alone take 8 GiB
    outputs = engine.search_best(sources, 25, np.full(len(sources), 3))
    del held
    assert all(output == outputs[0] for output in outputs)
