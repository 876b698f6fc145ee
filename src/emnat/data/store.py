"""Sequences of ids on disk, memory-mapped: a corpus need not fit in memory.

`NAME.tokens` holds all ids one after another (16 bits each where the vocabulary allows, else 32); `NAME.offsets.npy`
says where each sequence starts.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from emnat.errors import UserError

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.floating]


class Sequences(Sequence[Ints]):
    """Read-only sequences of ids; slices and items are views of the mapped file."""

    def __init__(self, folder: Path, name: str) -> None:
        tokens = folder / f"{name}.tokens"
        try:
            self._offsets = np.load(folder / f"{name}.offsets.npy", mmap_mode="r", allow_pickle=False)
            width = tokens.stat().st_size // max(int(self._offsets[-1]), 1)
            whole = tokens.stat().st_size == width * int(self._offsets[-1]) and width in (0, 2, 4)
        except (FileNotFoundError, ValueError, EOFError, IndexError):
            whole = False
        if not whole:
            raise UserError(f"{tokens}: missing or damaged: delete {folder} and run the command again.")
        dtype = np.uint16 if width == 2 else np.uint32
        # (Where all sequences are empty there is nothing to map, and nothing to read either but what `padded` hides.)
        self._tokens: Ints = np.memmap(tokens, dtype, "r") if width else np.zeros(1, dtype)

    def part(self, rows: range) -> Sequences:
        """Neighbouring sequences, as a store of their own over the same files."""
        part = copy(self)
        part._offsets = self._offsets[rows.start : rows.stop + 1]
        return part

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Ints:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._tokens[self._offsets[index] : self._offsets[index + 1]]

    def padded(self, indices: Ints, size: int, padding: int) -> tuple[Ints, Ints]:
        """The sequences `indices` as rows of `size` ids, and their lengths; all at once, since this feeds a GPU."""
        starts_B = np.asarray(self._offsets[indices])
        lengths_B = np.asarray(self._offsets[indices + 1]) - starts_B
        positions_L = np.arange(size)
        # Read what follows a sequence as well and hide it: reading only what is needed takes four times as long.
        ids_BL = np.take(self._tokens, starts_B[:, None] + positions_L, mode="clip").astype(np.int64)
        ids_BL[positions_L >= lengths_B[:, None]] = padding
        return ids_BL, lengths_B

    def longest(self, indices: Ints) -> int:
        """The length of the longest of some sequences."""
        return int((self._offsets[indices + 1] - self._offsets[indices]).max(initial=0))

    @property
    def lengths(self) -> Ints:
        lengths: Ints = np.diff(self._offsets)
        return lengths

    @property
    def mean_length(self) -> float:
        return float(self._offsets[-1] - self._offsets[0]) / len(self)


def lengths_of(sequences: Sequence[Ints]) -> Ints:
    return (
        sequences.lengths if isinstance(sequences, Sequences) else np.array([len(ids) for ids in sequences], np.int64)
    )


class SequenceWriter:
    """Appends sequences, keeping none; the offsets get their final form when it is closed without an error."""

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self._path = folder / f"{name}.offsets.npy"
        self._file = (folder / f"{name}.tokens").open("wb")
        self._offsets = self._path.with_suffix(".raw").open("w+b")
        self._dtype = np.uint16 if vocabulary <= 2**16 else np.uint32
        self._count = self._total = 0
        self._offsets.write(np.int64(0).tobytes())

    def append(self, ids: Sequence[int] | Ints) -> None:
        self._file.write(np.asarray(ids, self._dtype).tobytes())
        self._count, self._total = self._count + 1, self._total + len(ids)
        self._offsets.write(np.int64(self._total).tobytes())

    def extend(self, ids: Ints, lengths: Ints) -> None:
        """Several sequences, their ids one after another."""
        self._file.write(ids.astype(self._dtype).tobytes())
        self._offsets.write((self._total + np.cumsum(lengths, dtype=np.int64)).tobytes())
        self._count, self._total = self._count + len(lengths), self._total + len(ids)

    def extend_padded(self, ids_BL: Ints, lengths_B: Ints) -> None:
        """Several sequences, as `Sequences.padded` gives them."""
        self.extend(ids_BL[np.arange(ids_BL.shape[1]) < lengths_B[:, None]], lengths_B)

    def __enter__(self) -> SequenceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            with self._path.open("wb") as out:  # an .npy header, which has to say how many there are, then the offsets
                write_header(out, np.int64, (self._count + 1,))
                self._offsets.seek(0)
                shutil.copyfileobj(self._offsets, out)
        self._offsets.close()
        Path(self._offsets.name).unlink()


def concatenate(parts: Sequence[Path], name: str, folder: Path) -> None:
    """Join the stores `name` of several folders into one, in order, without reading them into memory."""
    part_offsets = [np.load(part / f"{name}.offsets.npy", mmap_mode="r", allow_pickle=False) for part in parts]
    count, total = sum(len(offsets) - 1 for offsets in part_offsets), 0
    with (folder / f"{name}.offsets.npy").open("wb") as joined, (folder / f"{name}.tokens").open("wb") as out:
        write_header(joined, np.int64, (count + 1,))
        joined.write(np.int64(0).tobytes())
        for part, offsets in zip(parts, part_offsets, strict=True):
            joined.write((offsets[1:] + total).tobytes())
            total += int(offsets[-1])
            with (part / f"{name}.tokens").open("rb") as tokens:
                shutil.copyfileobj(tokens, out)


def write_header(out: BinaryIO, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
    """Of an .npy file whose numbers are written after it. (Into a mapped file, a full disk would be a bus error.)"""
    described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, described)
