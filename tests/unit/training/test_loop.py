"""The loop learns, resumes exactly, accumulates exactly, and averages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from emnat import interrupt
from emnat.config import Model, Training
from emnat.data import collate, plan_epoch
from emnat.errors import UserError
from emnat.models import NAT, AnyModel, Teacher, build_model
from emnat.training import Examples, train
from emnat.training.checkpoints import STATE, average, load_state, save_weights
from emnat.training.optimiser import learning_rate
from emnat.training.updates import Updates

SETTINGS = Model(encoder_layers=1, decoder_layers=1, hidden=32, filter=64, heads=2, dropout=0.1)
CPU = torch.device("cpu")


def copy_task(seed: int, count: int = 200) -> Examples:
    """The target is the source, each token one higher."""
    random = np.random.default_rng(seed)
    sources = [random.integers(5, 12, random.integers(2, 6)) for _ in range(count)]
    targets = [ids + 1 for ids in sources]
    return Examples(sources, targets)


def minus_loss(model: AnyModel, examples: Examples) -> float:
    with torch.inference_mode():
        total = 0.0
        for source, target in zip(examples.sources, examples.targets, strict=True):
            pair = [torch.tensor(part)[None] for part in (source, target)]
            length = torch.tensor([len(source)])
            total += model.log_prob(pair[0], length, pair[1], length).item()
    return total / sum(map(len, examples.targets))


def run(
    folder: Path,
    seed: int,
    settings: Training,
    kind: str = "nat",
    validate: Callable[[AnyModel], float] | None = None,
    precision: str = "float32",
) -> tuple[AnyModel, dict[str, object]]:
    torch.manual_seed(seed)
    model = build_model(kind, SETTINGS, vocabulary=14, max_tokens=8)
    examples = copy_task(seed)
    score = validate or (lambda m: minus_loss(m, copy_task(seed + 1, 20)))
    folder.mkdir(exist_ok=True)
    facts = train(
        model,
        examples,
        lambda: score(model),
        settings,
        seed=seed,
        device=CPU,
        precision=precision,
        folder=folder,
        name="test",
        scalars=folder / "scalars",
    )
    return model, facts


SHORT = Training(steps=30, tokens=120, learning_rate=5e-3, warmup=10, validate_every=10, average=2)


@pytest.mark.parametrize("kind", [Teacher.kind, NAT.kind])
def test_learns(tmp_path: Path, seed: int, kind: str) -> None:
    settings = Training(steps=250, tokens=200, learning_rate=1e-2, warmup=30, validate_every=125, average=1)
    before = run(tmp_path / "a", seed, Training(**(settings.model_dump() | {"steps": 1})), kind)[1]["best_score"]
    after = run(tmp_path / "b", seed, settings, kind)[1]["best_score"]
    assert before < -1.5
    assert after > -0.6


class TornError(Exception):
    pass


@pytest.mark.parametrize("kind", [Teacher.kind, NAT.kind])
def test_an_interrupted_training_ends_byte_identical(tmp_path: Path, seed: int, kind: str) -> None:
    whole, whole_facts = run(tmp_path / "whole", seed, SHORT, kind)
    calls = []

    def failing(model: AnyModel) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise TornError
        return minus_loss(model, copy_task(seed + 1, 20))

    with pytest.raises(TornError):
        run(tmp_path / "torn", seed, SHORT, kind, failing)
    resumed, resumed_facts = run(tmp_path / "torn", seed, SHORT, kind)
    for facts in (resumed_facts, whole_facts):
        assert facts.pop("target tokens per second") > 0
    assert resumed_facts == whole_facts
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_accumulated_gradients_are_those_of_one_batch(tmp_path: Path, seed: int) -> None:
    """Every batch of an epoch accumulated into one step, against the gradient of all pairs at once."""
    torch.manual_seed(seed)
    plain = SETTINGS.model_copy(update={"dropout": 0.0, "length_loss": 0.0})
    model = build_model("nat", plain, vocabulary=14, max_tokens=8)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    examples = copy_task(seed, 24)
    lengths = np.array([len(ids) for ids in examples.sources])
    results = []
    for tokens in (10_000, 16):
        count = len(plan_epoch(lengths, lengths, tokens, seed, 0))
        model.load_state_dict(start)
        settings = Training(
            steps=1, tokens=tokens, accumulate=count, warmup=1, learning_rate=1e-3, clip=1e-9, weight_decay=0.0
        )
        folder = tmp_path / str(tokens)
        folder.mkdir()
        train(
            model,
            examples,
            lambda: 0.0,
            settings,
            seed=seed,
            device=CPU,
            precision="float32",
            folder=folder,
            name="test",
            scalars=folder / "scalars",
        )
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results.append(gradient / gradient.norm())
    assert torch.allclose(results[0], results[1], atol=1e-4)


def test_early_stop_keeps_the_best(tmp_path: Path, seed: int) -> None:
    scores = iter([1.0, 5.0, 4.0, 3.0, 2.0, 9.0])
    settings = SHORT.model_copy(update={"steps": 1000, "patience": 2, "average": 1})
    _, facts = run(tmp_path, seed, settings, validate=lambda model: next(scores))
    assert facts["steps"] == 40
    assert facts["best_step"] == 20


def test_out_of_memory_means_smaller_batches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than five sentences at once do not fit; the update is that of the whole batch all the same."""
    examples = copy_task(seed, 23)
    plan = plan_epoch(*(np.array(list(map(len, side))) for side in (examples.sources, examples.targets)), 500, 1, 0)
    batch = collate(examples.sources, examples.targets, plan[0])
    plainly, tried, fitting = NAT.loss, [], []

    def limited(self: NAT, source_BS: torch.Tensor, *rest: object) -> torch.Tensor:
        tried.append(len(source_BS))
        if len(source_BS) > fitting[-1]:
            raise torch.OutOfMemoryError
        return plainly(self, source_BS, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(NAT, "loss", limited)
    updated = []
    for limit in (23, 5):
        fitting.append(limit)
        torch.manual_seed(seed)
        model = NAT(SETTINGS.model_copy(update={"dropout": 0.0, "length_loss": 0.0}), 14, 8)
        optimiser = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.0))  # type: ignore[arg-type]
        updates = Updates(model, optimiser, SHORT, CPU, "float32")
        losses = [float(updates.make([batch], 0.5)) for _ in range(2)]
        updated.append((losses, model.state_dict()))
    assert tried == [23, 23, 23, 12, 6, 3, 3, 3, 3, 3, 3, 3, 2, 3, 3, 3, 3, 3, 3, 3, 2]
    assert updated[0][0] == pytest.approx(updated[1][0], rel=1e-5)
    for name, value in updated[0][1].items():
        assert torch.allclose(value, updated[1][1][name], atol=1e-5), name


def test_one_sentence_that_does_not_fit_is_the_end(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(NAT, "loss", never)
    with pytest.raises(torch.OutOfMemoryError):
        run(tmp_path, seed, SHORT)


def test_exploding_gradients_are_clipped(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss a million times as large moves the weights as far as any: its gradients are cut to the same length."""
    settings = SHORT.model_copy(update={"steps": 3, "clip": 1e-3})
    plainly = NAT.loss
    calm, _ = run(tmp_path / "calm", seed, settings)
    monkeypatch.setattr(NAT, "loss", lambda *arguments: plainly(*arguments) * 1e6)
    wild, _ = run(tmp_path / "wild", seed, settings)
    for name, value in calm.state_dict().items():
        assert (value - wild.state_dict()[name]).abs().mean() < 1e-4, name


@pytest.mark.parametrize("stop", [7, 10, 30])
def test_a_stop_at_any_step_is_continued_from_there(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Also at a step with a validation, or at the last: what comes out is what would have come out."""
    alone, facts = run(tmp_path / "alone", seed, SHORT)
    plainly, steps = NAT.loss, []

    def counted(*arguments: object) -> torch.Tensor:
        steps.append(1)
        return plainly(*arguments)  # type: ignore[arg-type]

    def stop_now() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(NAT, "loss", counted)
        patched.setattr(interrupt, "asked", lambda: len(steps) == stop)
        patched.setattr(interrupt, "stop_if_asked", stop_now)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", seed, SHORT)
    assert len(steps) == stop
    resumed, again = run(tmp_path / "stopped", seed, SHORT)
    assert again["scores"] == facts["scores"]
    for name, value in alone.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_damaged_state_is_named(tmp_path: Path, seed: int) -> None:
    def failing(model: AnyModel) -> float:
        if (tmp_path / "snapshot-10.safetensors").exists():
            raise RuntimeError
        return 1.0

    with pytest.raises(RuntimeError):
        run(tmp_path, seed, SHORT, validate=failing)
    path = tmp_path / "state.safetensors"
    whole = path.read_bytes()
    random = np.random.default_rng(seed)
    for position in random.integers(0, len(whole), 50):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << random.integers(0, 8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(UserError, match=r"state\.safetensors: missing or damaged"):
            run(tmp_path, seed, SHORT)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"state\.safetensors: missing or damaged"):
        run(tmp_path, seed, SHORT)


def test_average_is_taken_only_if_validation_likes_it(tmp_path: Path, seed: int) -> None:
    for last, chosen in ((9.0, "average"), (0.0, "best")):
        scores = iter([1.0, 2.0, 3.0, last])
        _, facts = run(tmp_path / chosen, seed, SHORT, validate=lambda model, it=scores: next(it))
        assert facts["chosen"] == chosen


def test_linear_decay_leaves_the_last_weights(tmp_path: Path, seed: int) -> None:
    settings = SHORT.model_copy(update={"decay": "linear"})
    seen: list[list[torch.Tensor]] = []

    def worse_every_time(model: AnyModel) -> float:
        seen.append([weights.detach().clone() for weights in model.parameters()])
        return -float(len(seen))

    model, facts = run(tmp_path / "whole", seed, settings, validate=worse_every_time)
    assert facts["chosen"] == "last"
    assert len(seen) == 3
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), seen[-1], strict=True))
    stopped_early = settings.model_copy(update={"patience": 1})
    model, facts = run(tmp_path / "early", seed, stopped_early, validate=worse_every_time)
    assert facts["steps"] == 20
    assert facts["best_step"] == 10


def test_average_of_snapshots(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, value in zip(paths, (1.0, 4.0), strict=True):
        module = torch.nn.Module()
        module.register_buffer("x", torch.full((2,), value))
        save_weights(path, module)
    assert average(paths)["x"].tolist() == [2.5, 2.5]


def test_schedule() -> None:
    settings = Training(learning_rate=1.0, warmup=100)
    assert learning_rate(50, settings) == pytest.approx(0.5)
    assert learning_rate(100, settings) == pytest.approx(1.0)
    assert learning_rate(400, settings) == pytest.approx(0.5)
    straight = Training(learning_rate=1.0, warmup=100, steps=299, decay="linear")
    assert [learning_rate(step, straight) for step in (50, 100, 200, 299)] == pytest.approx([0.5, 1.0, 0.5, 0.005])


def test_a_loss_that_is_no_number_is_explained(tmp_path: Path, seed: int) -> None:
    settings = Training(steps=60, tokens=120, learning_rate=1e9, warmup=1, clip=1e9, validate_every=1000)
    with pytest.raises(UserError, match="lower learning_rate"):
        run(tmp_path, seed, settings)


def test_bf16_trains_too(tmp_path: Path, seed: int) -> None:
    _, facts = run(tmp_path, seed, SHORT, precision="bfloat16")
    assert np.isfinite(json.loads(json.dumps(facts))["best_score"])
    assert list((tmp_path / "scalars").glob("events*"))


def test_weights_that_went_to_infinity_are_not_kept(tmp_path: Path, seed: int) -> None:
    """The loss of the last step is that of the weights before it."""
    with pytest.raises(UserError, match="lower learning_rate"):
        run(tmp_path, seed, SHORT.model_copy(update={"steps": 1, "warmup": 1, "learning_rate": 1e38}))


def test_a_state_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    """Nobody should be told to delete it."""
    (tmp_path / STATE).mkdir()
    model = NAT(SETTINGS, 14, 8)
    with pytest.raises(IsADirectoryError):
        load_state(tmp_path, model, torch.optim.SGD(model.parameters()))
