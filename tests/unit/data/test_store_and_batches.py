from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emnat.data import Sequences, SequenceWriter, collate, concatenate, plan_decoding, plan_epoch
from emnat.errors import UserError


def write(folder: Path, rows: list[list[int]], vocabulary: int = 100) -> Sequences:
    folder.mkdir(exist_ok=True)
    with SequenceWriter(folder, "x", vocabulary) as writer:
        for row in rows:
            writer.append(row)
    return Sequences(folder, "x")


@pytest.mark.parametrize(("vocabulary", "width"), [(65_536, 2), (65_537, 4)])
def test_store_round_trip(tmp_path: Path, vocabulary: int, width: int) -> None:
    rows = [[5, 6, 7], [], [vocabulary - 1], [1] * 1000]
    store = write(tmp_path, rows, vocabulary)
    assert [row.tolist() for row in store] == rows
    assert store.lengths.tolist() == [3, 0, 1, 1000]
    assert (tmp_path / "x.tokens").stat().st_size == width * 1004
    assert isinstance(store[0].base, np.memmap)


def test_concatenated_parts_are_the_whole(tmp_path: Path) -> None:
    rows = [[i] * i for i in range(10)]
    for name, part in (("a", rows[:4]), ("b", rows[4:4]), ("c", rows[4:])):
        write(tmp_path / name, part)
    concatenate([tmp_path / name for name in "abc"], "x", tmp_path)
    assert [row.tolist() for row in Sequences(tmp_path, "x")] == rows


@pytest.mark.parametrize("name", ["x.tokens", "x.offsets.npy"])
def test_truncated_store_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, [[1, 2, 3]] * 50)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match="missing or damaged"):
        Sequences(tmp_path, "x")


@settings(max_examples=100)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=200), st.integers(1, 300), st.integers(0, 5))
def test_an_epoch_has_every_pair_once_within_the_budget(lengths: list[int], tokens: int, epoch: int) -> None:
    sizes = np.array(lengths)
    plan = plan_epoch(sizes, tokens, seed=3, epoch=epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths)))
    assert all(len(batch) == 1 or sizes[batch].max() * len(batch) <= tokens for batch in plan)
    again = plan_epoch(sizes, tokens, seed=3, epoch=epoch)
    assert all(np.array_equal(a, b) for a, b in zip(plan, again, strict=True))


def test_epochs_and_seeds_differ() -> None:
    sizes = np.arange(1, 200)
    first = np.concatenate(plan_epoch(sizes, 100, seed=1, epoch=0))
    assert not np.array_equal(first, np.concatenate(plan_epoch(sizes, 100, seed=1, epoch=1)))
    assert not np.array_equal(first, np.concatenate(plan_epoch(sizes, 100, seed=2, epoch=0)))


@given(st.lists(st.integers(1, 60), max_size=100), st.integers(1, 300))
def test_decoding_plan_covers_all_longest_first(lengths: list[int], tokens: int) -> None:
    sizes = np.array(lengths, dtype=np.int64)
    plan = plan_decoding(sizes, tokens)
    order = [i for batch in plan for i in batch.tolist()]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or sizes[batch].max() * len(batch) <= tokens for batch in plan)


def test_collate_pads_each_side_by_itself() -> None:
    batch = collate([np.array([5, 6]), np.array([7])], [np.array([8]), np.array([9, 9, 9])], np.array([1, 0]))
    assert batch.source_BS.tolist() == [[7, 0], [5, 6]]
    assert batch.target_BT.tolist() == [[9, 9, 9], [8, 0, 0]]
    assert batch.target_lengths_B.tolist() == [3, 1]
