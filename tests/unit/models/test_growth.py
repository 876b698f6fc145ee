"""A larger model that is to begin where a smaller one is computes the same, and then learns what the smaller cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from emnat.config import Model
from emnat.models import NAT, AnyModel, Teacher
from emnat.models.growth import begin_from, can_begin_from

SMALL = Model(encoder_layers=1, decoder_layers=2, hidden=16, filter=24, heads=2, dropout=0.0)
WIDER = SMALL.model_copy(update={"hidden": 32, "heads": 4})
DEEPER = SMALL.model_copy(update={"encoder_layers": 3, "decoder_layers": 4})
LARGER = DEEPER.model_copy(update={"hidden": 48, "filter": 48, "heads": 6})


def some_batch(vocabulary: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    source_BS, target_BT = torch.randint(6, vocabulary, (3, 7)), torch.randint(6, vocabulary, (3, 5))
    return source_BS, torch.tensor([7, 4, 1]), target_BT, torch.tensor([5, 2, 3])


def trained_a_little(model: AnyModel) -> AnyModel:
    """Biases and norms are 0 and 1 at first, and could be mistaken for one another."""
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.1 * torch.randn_like(weights)
    return model


@pytest.mark.parametrize("kind", [NAT, Teacher])
@pytest.mark.parametrize("settings", [SMALL, WIDER, DEEPER, LARGER], ids=["same", "wider", "deeper", "larger"])
def test_computes_what_the_smaller_does(kind: type[AnyModel], settings: Model, seed: int) -> None:
    torch.manual_seed(seed)
    small, large = trained_a_little(kind(SMALL, 30, 9)).eval(), kind(settings, 30, 9).eval()
    batch = some_batch(30)
    assert not torch.allclose(small.log_prob(*batch), large.log_prob(*batch), atol=0.1)
    begin_from(small, large)
    torch.testing.assert_close(small.log_prob(*batch), large.log_prob(*batch), atol=1e-4, rtol=1e-5)


def test_copies_do_not_learn_the_same(seed: int) -> None:
    """Else the larger model would stay as good as the smaller, however long it is trained."""
    torch.manual_seed(seed)
    small, large = trained_a_little(NAT(SMALL, 30, 9)), NAT(WIDER, 30, 9)
    begin_from(small, large)
    large.loss(*some_batch(30), 0.1).backward()  # type: ignore[no-untyped-call]
    for name, weights in large.named_parameters():
        if name.endswith("inner.weight"):
            assert weights.grad is not None
            first, second = weights.grad[:, :16], weights.grad[:, 16:]
            torch.testing.assert_close(first, second)  # equal copies are read, so these are the same,
        elif name.endswith("attention.output.weight"):
            assert weights.grad is not None
            first, second = weights.grad[:16], weights.grad[16:]
            assert not torch.allclose(first, second, rtol=0.1)  # but what comes after them reads each in its own way


def test_which_sizes_can_begin_from_which() -> None:
    def with_(**sizes: object) -> Model:
        return SMALL.model_copy(update=sizes)

    assert all(can_begin_from(SMALL, settings) for settings in (SMALL, WIDER, DEEPER, LARGER))
    small, base = (Model.model_validate({"size": size}) for size in ("small", "base"))
    assert can_begin_from(small, base)
    assert not can_begin_from(base, small)
    assert not can_begin_from(SMALL, with_(hidden=24, heads=3))  # no multiple
    assert not can_begin_from(SMALL, with_(hidden=32))  # other heads
    assert not can_begin_from(SMALL, with_(filter=36))
    assert not can_begin_from(SMALL, with_(decoder_layers=1))
    post = with_(norm="post")
    assert can_begin_from(post, post)
    assert not can_begin_from(post, with_(norm="post", decoder_layers=3))
    assert not can_begin_from(SMALL, post)
