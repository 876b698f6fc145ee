from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emnat.data import Planned, Sequences, SequenceWriter, collate, concatenate, plan_decoding, plan_epoch
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


@given(st.lists(st.lists(st.lists(st.integers(0, 99)), max_size=4), max_size=5))
@settings(max_examples=30, deadline=None)
def test_many_sequences_at_once_are_what_they_are_one_by_one(groups: list[list[list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        one_by_one = write(Path(name) / "a", [row for rows in groups for row in rows])
        with SequenceWriter(Path(name), "x", 100) as writer:
            for rows in groups:
                ids, lengths = [i for row in rows for i in row], [len(row) for row in rows]
                writer.extend(np.array(ids, np.int64), np.array(lengths, np.int64))
        at_once = Sequences(Path(name), "x")
        assert [row.tolist() for row in at_once] == [row.tolist() for row in one_by_one]


def test_a_part_of_a_store(tmp_path: Path) -> None:
    rows = [[i] * i for i in range(10)]
    part = write(tmp_path, rows).part(range(3, 7))
    assert [row.tolist() for row in part] == rows[3:7]
    assert part.lengths.tolist() == [3, 4, 5, 6]
    assert part.mean_length == 4.5
    assert [part.longest(np.array(rows, np.int64)) for rows in ([], [0], [2, 1])] == [0, 3, 5]
    ids, lengths = part.padded(np.array([1, 3]), 7, 0)
    assert ids.tolist() == [[4] * 4 + [0] * 3, [6] * 6 + [0]]
    assert lengths.tolist() == [4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.offsets.npy", "x.tokens"]


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8), st.integers(5, 9))
@settings(max_examples=50, deadline=None)
def test_padded_rows_end_where_their_sequences_do(rows: list[list[int]], size: int) -> None:
    """Also those at the end of the file, and those of a store in which all are empty."""
    with tempfile.TemporaryDirectory() as name:
        ids_BL, lengths_B = write(Path(name), rows).padded(np.arange(len(rows))[::-1], size, 7)
    assert ids_BL.tolist() == [row + [7] * (size - len(row)) for row in rows[::-1]]
    assert lengths_B.tolist() == [len(row) for row in rows[::-1]]


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


Pairs = list[tuple[int, int]]


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=200),
    st.integers(1, 300),
    st.integers(0, 5),
)
def test_an_epoch_has_every_pair_once_within_the_budget(pairs: Pairs, tokens: int, epoch: int) -> None:
    sources, targets = np.array(pairs).T
    plan = plan_epoch(sources, targets, tokens, seed=3, epoch=epoch)
    assert sorted(np.concatenate([batch.indices for batch in plan]).tolist()) == list(range(len(pairs)))
    for batch in plan:
        assert sources[batch.indices].max() <= batch.source_size <= sources.max()
        assert targets[batch.indices].max() <= batch.target_size <= targets.max()
        size = max(batch.source_size, batch.target_size)
        assert len(batch.indices) == 1 or size * len(batch.indices) <= tokens
    again = plan_epoch(sources, targets, tokens, seed=3, epoch=epoch)
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(plan, again, strict=True))


def test_batches_of_a_shape_are_full_and_hold_little_padding() -> None:
    random = np.random.default_rng(0)
    targets = np.clip(random.normal(20, 8, 20_000).astype(int), 1, 60)
    sources = np.clip((targets * random.normal(1.1, 0.15, 20_000)).astype(int), 1, 60)
    plan = plan_epoch(sources, targets, 4096, seed=1, epoch=0)
    rows: dict[tuple[int, int], set[int]] = {}
    for batch in plan:
        rows.setdefault((batch.source_size, batch.target_size), set()).add(len(batch.indices))
    assert sum(len(counts) - 1 for counts in rows.values()) <= 1
    padded = sum(len(batch.indices) * batch.target_size for batch in plan)
    assert targets.sum() / padded > 0.88


def test_epochs_and_seeds_differ() -> None:
    sizes = np.arange(1, 200)
    first, next_epoch, other_seed = (
        np.concatenate([batch.indices for batch in plan_epoch(sizes, sizes, 100, seed, epoch)])
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    )
    assert not np.array_equal(first, next_epoch)
    assert not np.array_equal(first, other_seed)


@given(st.lists(st.integers(1, 60), max_size=100), st.integers(1, 300))
def test_decoding_plan_covers_all_longest_first(lengths: list[int], tokens: int) -> None:
    sizes = np.array(lengths, dtype=np.int64)
    plan = plan_decoding(sizes, lambda longest: max(1, tokens // longest))
    order = [i for batch in plan for i in batch.tolist()]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or sizes[batch].max() * len(batch) <= tokens for batch in plan)


@pytest.mark.parametrize("stored", [False, True])
def test_collate_pads_each_side_by_itself(tmp_path: Path, stored: bool) -> None:
    rows = [[5, 6], [7]], [[8], [9, 9, 9]]
    if stored:
        sources, targets = (write(tmp_path / name, side) for name, side in zip("st", rows, strict=True))
    else:
        sources, targets = ([np.array(row) for row in side] for side in rows)
    batch = collate(sources, targets, Planned(np.array([1, 0]), 2, 4))
    assert batch.source_BS.tolist() == [[7, 0], [5, 6]]
    assert batch.target_BT.tolist() == [[9, 9, 9, 0], [8, 0, 0, 0]]
    assert batch.target_lengths_B.tolist() == [3, 1]
