"""Raw lines → ids and back. Knows nothing of tensors or models."""

from emnat.text.corpus import decode_lines, read_lines, read_pairs
from emnat.text.pipeline import TextPipeline, load_pipeline
from emnat.text.subwords import Vocabulary, train_vocabulary

__all__ = [
    "TextPipeline",
    "Vocabulary",
    "decode_lines",
    "load_pipeline",
    "read_lines",
    "read_pairs",
    "train_vocabulary",
]
