"""Both models are probability distributions, and padding and company do not change them."""

from __future__ import annotations

import itertools

import pytest
import torch

from emnat.config import Model
from emnat.models import NAT, Teacher
from emnat.text.subwords import CONCAT, EOS, SPECIAL

LABELS = range(CONCAT, 9)
SOURCE = torch.tensor([[5, 6, 7]]), torch.tensor([3])


def all_sequences(size: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product(LABELS, repeat=size)))


@torch.inference_mode()
def test_teacher_sums_to_one(tiny_teacher: Teacher) -> None:
    """All finished sequences up to 3 tokens, and the mass of what goes on from there."""
    finished = 0.0
    for size in range(1, 4):
        tokens = all_sequences(size)
        finished += tiny_teacher.log_prob(*SOURCE, tokens, torch.full((len(tokens),), size)).double().exp().sum().item()
    state = tiny_teacher.state(1, 3, 1, 1)
    state.begin(*SOURCE)
    first = state.step(torch.tensor([1]), 1)[0]
    empty = first[EOS].double().exp().item()
    # The rest: prefixes of 3 tokens that do not end there.
    tokens = all_sequences(3)
    state = tiny_teacher.state(1, 3, len(tokens), 4)
    state.begin(*SOURCE)
    prefix, fed = torch.zeros(len(tokens), dtype=torch.double), torch.full((len(tokens),), 1)
    for t in range(3):
        prefix += state.step(fed, t + 1).gather(1, tokens[:, t : t + 1])[:, 0].double()
        fed = tokens[:, t]
    goes_on = (prefix.exp() * (1 - state.step(fed, 4)[:, EOS].double().exp())).sum().item()
    assert finished + empty + goes_on == pytest.approx(1.0, abs=1e-5)


@torch.inference_mode()
def test_student_sums_to_one_per_length(tiny_student: NAT) -> None:
    lengths = tiny_student.length_log_probs(tiny_student.encode(*SOURCE))[0]
    assert lengths.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    for size in range(1, 4):
        tokens = all_sequences(size)
        total = tiny_student.log_prob(*SOURCE, tokens, torch.full((len(tokens),), size)).double().exp().sum().item()
        assert total == pytest.approx(lengths[size - 1].exp().item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["tiny_teacher", "tiny_student"])
@torch.inference_mode()
def test_padding_and_company_change_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    sources = torch.tensor([[5, 6, 7, 0, 0], [8, 8, 5, 6, 7]]), torch.tensor([3, 5])
    targets = torch.tensor([[4, 5, 0, 0], [6, 7, 8, 4]]), torch.tensor([2, 4])
    together = model.log_prob(*sources, *targets)
    alone = model.log_prob(sources[0][:1, :3], sources[1][:1], targets[0][:1, :2], targets[1][:1])
    assert together[0].item() == pytest.approx(alone[0].item(), abs=1e-4)


@pytest.mark.parametrize("kind", ["tiny_teacher", "tiny_student"])
@torch.inference_mode()
def test_several_targets_share_a_source(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    sources = torch.tensor([[5, 6, 7], [8, 5, 0]]), torch.tensor([3, 2])
    targets, lengths = torch.randint(CONCAT, 9, (6, 4)), torch.tensor([4, 1, 4, 3, 4, 3])  # some of one length
    shared = model.log_prob(*sources, targets, lengths)
    repeated = model.log_prob(sources[0].repeat_interleave(3, 0), sources[1].repeat_interleave(3), targets, lengths)
    assert shared.tolist() == pytest.approx(repeated.tolist(), abs=1e-4)


@torch.inference_mode()
def test_proposal_never_contains_special_symbols(tiny_student: NAT) -> None:
    memory = tiny_student.encode(*SOURCE)
    log_probs = tiny_student.propose(memory, torch.tensor([[3, 5]]), 5).log_softmax(-1)
    assert log_probs.shape == (2, 5, 9)
    assert torch.isinf(log_probs[..., list(SPECIAL)]).all()
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(2, 5), atol=1e-5)


def test_student_loss_by_hand(tiny_student: NAT) -> None:
    """Tokens over the whole vocabulary, and 0.1 of the length loss at the same scale (4 tokens)."""
    source = torch.tensor([[5, 6, 7], [8, 5, 0]]), torch.tensor([3, 2])
    target = torch.tensor([[4, 5, 6], [7, 0, 0]]), torch.tensor([3, 1])
    with torch.no_grad():
        memory = tiny_student.encode(*source)
        logits = tiny_student._logits(memory, target[1], 3)
        log_probs = logits.log_softmax(-1)
        tokens = -(log_probs[0, [0, 1, 2], [4, 5, 6]].sum() + log_probs[1, 0, 7])
        lengths = -tiny_student.length_log_probs(memory)[[0, 1], [2, 0]].mean()
    loss = tiny_student.loss(*source, *target, label_smoothing=0.0)
    assert loss.item() == pytest.approx((tokens + 0.1 * lengths * 4).item(), rel=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_paper_sizes(norm: str) -> None:
    for size, layers, hidden in (("toy", 3, 256), ("small", 5, 256), ("base", 6, 512), ("large", 6, 1024)):
        settings = Model.model_validate({"size": size, "norm": norm})
        assert (settings.encoder_layers, settings.decoder_layers, settings.hidden) == (layers, layers, hidden)
    model = NAT(Model.model_validate({"size": "toy", "norm": norm}), vocabulary=20, max_tokens=8)
    assert len(model.decoder) == 3
    assert torch.isfinite(model.loss(*SOURCE, torch.tensor([[5, 6]]), torch.tensor([2]), 0.1))


def test_embeddings_are_tied() -> None:
    """One matrix serves source, target and output: it is the only parameter with a row for each symbol."""
    settings = Model.model_validate({"size": "toy"})
    for model in (Teacher(settings, 37, 8), NAT(settings, 37, 8)):
        assert [name for name, p in model.named_parameters() if 37 in p.shape] == ["embedding.tokens"]
