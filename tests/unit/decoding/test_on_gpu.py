"""What only a GPU has: kernels and captured graphs, against the plain implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emnat.config import Decode, Model
from emnat.decoding import odd_decode
from emnat.decoding.engine import Engine
from emnat.models import NAT, Teacher

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
SETTINGS = Model(encoder_layers=2, decoder_layers=2, hidden=64, filter=128, heads=4)


@pytest.mark.parametrize("labels", [3, 50, 4097, 32_000])
@pytest.mark.parametrize("levels", [2, 8, 1 << 20])
def test_odd_kernels_equal_the_reference(seed: int, labels: int, levels: int) -> None:
    """With few levels nearly all scores tie; they are fractions of powers of two, so that sums are exact."""
    torch.manual_seed(seed)
    for length in (1, 2, 17, 40):
        scores_BTV = torch.randint(0, levels, (9, length, labels)).float() / levels
        scores_BTV[:, :, : labels // 4] = -torch.inf
        lengths_B = torch.randint(0, length + 1, (9,))
        wanted_BT, wanted_B = odd_decode(scores_BTV, lengths_B)
        tokens_BT, score_B = odd_decode(scores_BTV.cuda(), lengths_B.cuda())
        assert torch.equal(score_B.cpu(), wanted_B)
        if levels > 8:  # otherwise, several sequences are best
            assert torch.equal(tokens_BT.cpu(), wanted_BT)
        inside_BT = torch.arange(length) < lengths_B[:, None]
        picked_BT = scores_BTV.gather(2, tokens_BT.cpu()[..., None])[..., 0]
        assert torch.equal(torch.where(inside_BT, picked_BT, 0.0).sum(1), wanted_B)
        repeats = (tokens_BT[:, 1:] == tokens_BT[:, :-1]).cpu() & inside_BT[:, 1:]
        assert not repeats.any() or wanted_B.isinf().any()


def test_replayed_searches_and_passes_repeat_themselves(seed: int) -> None:
    """The first call of a shape runs plainly, the second is captured, the third replayed: all with the same result."""
    torch.manual_seed(seed)
    device = torch.device("cuda")
    teacher, student = (kind(SETTINGS, 40, 30).to(device).eval() for kind in (Teacher, NAT))
    random = np.random.default_rng(seed)
    engines = [Engine(model, teacher, device, "float32", Decode()) for model in (teacher, student)]
    for sources in ([random.integers(5, 40, n) for n in (3, 12, 7)] for _ in range(4)):
        expected = Engine(teacher, None, torch.device("cpu"), "float32", Decode())
        expected._model = teacher.cpu()
        plain = expected.search_best(sources, 4, None)
        teacher.to(device)
        assert all(engines[0].search_best(sources, 4, None) == plain for _ in range(3))
        passes = [engines[1].one_pass(sources, "odd", 5, True, None) for _ in range(3)]
        assert passes[0] == passes[1] == passes[2]
