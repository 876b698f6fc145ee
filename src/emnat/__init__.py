"""emnat: parallel text in, a one-pass translation model out."""

from emnat._version import __version__
from emnat.decoding.translator import load_translator as load

__all__ = ["__version__", "load"]
