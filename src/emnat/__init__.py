"""emnat: parallel text in, a one-pass translation model out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from emnat._version import __version__

if TYPE_CHECKING:
    from emnat.config import Decode
    from emnat.decoding.translator import Translator

# PyTorch's threads wait for each other by spinning, for milliseconds unless told otherwise before it is imported: where
# other work wants the same cores, nearly all time goes into that (docs/log.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__all__ = ["__version__", "load"]


def load(directory: str | Path, device: str = "auto", settings: Decode | None = None) -> Translator:
    """A model from its directory, also an exported one, or from a run (its final student)."""
    from emnat.decoding.translator import load_translator  # noqa: PLC0415  # PyTorch takes seconds to import

    return load_translator(directory, device, settings)
