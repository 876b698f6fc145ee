"""A teacher as a CTranslate2 model: the strongest autoregressive run-time for CPUs, and so the peer to beat."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ctranslate2.specs import common_spec, transformer_spec

from emnat.errors import UserError
from emnat.models import Teacher

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
Weights = Mapping[str, npt.NDArray[np.float32]]


def save_for_ctranslate2(teacher: Teacher, symbols: list[str], folder: Path) -> None:
    """Write the model directory that `ctranslate2.Translator` reads. `symbols`: the vocabulary's, by id."""
    settings = teacher.settings
    if settings.norm != "pre":
        raise UserError('CTranslate2 export knows norm = "pre" only.')
    spec = transformer_spec.TransformerSpec.from_config(
        (settings.encoder_layers, settings.decoder_layers), settings.heads, pre_norm=True
    )
    weights = {name: value.detach().float().cpu().numpy() for name, value in teacher.state_dict().items()}
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = weights["embedding.tokens"]
    spec.decoder.projection.weight = weights["embedding.tokens"]
    spec.encoder.position_encodings.encodings = weights["embedding.source_positions"]
    spec.decoder.position_encodings.encodings = weights["embedding.target_positions"]
    _norm(spec.encoder.layer_norm, weights, "encoder.norm")
    _norm(spec.decoder.layer_norm, weights, "norm")
    for number, layer in enumerate(spec.encoder.layer):
        _layer(layer, weights, f"encoder.layers.{number}")
    for number, layer in enumerate(spec.decoder.layer):
        _layer(layer, weights, f"decoder.{number}")
        name = f"decoder.{number}"
        _norm(layer.attention.layer_norm, weights, f"{name}.around_cross.norm")
        for part, linear in zip(layer.attention.linear, ("query", "key_value", "output"), strict=True):
            _linear(part, weights, f"{name}.cross.{linear}")
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = BEGIN, END, UNKNOWN
    spec.config.decoder_start_token = BEGIN
    spec.register_source_vocabulary(symbols)
    spec.register_target_vocabulary(symbols)
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _layer(layer: Any, weights: Weights, name: str) -> None:
    _norm(layer.self_attention.layer_norm, weights, f"{name}.around_attention.norm")
    for part, linear in zip(layer.self_attention.linear, ("inputs", "output"), strict=True):
        _linear(part, weights, f"{name}.attention.{linear}")
    _norm(layer.ffn.layer_norm, weights, f"{name}.around_feed_forward.norm")
    _linear(layer.ffn.linear_0, weights, f"{name}.feed_forward.inner")
    _linear(layer.ffn.linear_1, weights, f"{name}.feed_forward.outer")


def _norm(part: common_spec.LayerNormSpec, weights: Weights, name: str) -> None:
    part.gamma, part.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


def _linear(part: common_spec.LinearSpec, weights: Weights, name: str) -> None:
    part.weight, part.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
