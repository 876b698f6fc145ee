"""The <concat> symbol (the paper's footnote): true repeats survive a decoder that forbids equal neighbours."""

from __future__ import annotations

from collections.abc import Sequence


def insert_concat(ids: Sequence[int], concat: int) -> list[int]:
    """`very very good` → `very <concat> very good`. The input must not contain the symbol."""
    out: list[int] = []
    for token in ids:
        if out and out[-1] == token:
            out.append(concat)
        out.append(token)
    return out


def remove_concat(ids: Sequence[int], concat: int) -> list[int]:
    return [token for token in ids if token != concat]
