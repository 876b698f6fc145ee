"""Functions of tensors: beam search, argmax, ODD, de-duplication, length candidates, rescoring; and the Translator."""

from emnat.decoding.beam import BeamSearch, Hypotheses
from emnat.decoding.lengths import length_candidates
from emnat.decoding.odd import odd_decode
from emnat.decoding.repeats import argmax_decode, collapse_repeats
from emnat.decoding.translator import Translator

__all__ = [
    "BeamSearch",
    "Hypotheses",
    "Translator",
    "argmax_decode",
    "collapse_repeats",
    "length_candidates",
    "odd_decode",
]
