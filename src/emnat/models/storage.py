"""Models on disk: weights in safetensors, shape in config.json. Reading one executes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from emnat.config import Decode, Model, Text
from emnat.errors import UserError
from emnat.models.nat import NAT
from emnat.models.teacher import Teacher

FORMAT = 1
AnyModel = Teacher | NAT
_KINDS: dict[str, type[Teacher] | type[NAT]] = {Teacher.kind: Teacher, NAT.kind: NAT}


def build_model(kind: str, settings: Model, vocabulary: int, max_tokens: int) -> AnyModel:
    return _KINDS[kind](settings, vocabulary, max_tokens)


@dataclass(frozen=True)
class Stored:
    """A model as it comes from disk, and how its text is to be treated and its output decoded."""

    model: AnyModel
    text: Text
    decode: Decode


def save_model(model: AnyModel, folder: Path, text: Text, decode: Decode, name: str = "model") -> None:
    """`NAME.safetensors`, and `config.json` (for another name: `NAME.json`) with all that is needed to load it."""
    save_file(
        {key: value.contiguous().cpu() for key, value in model.state_dict().items()},
        folder / f"{name}.safetensors",
    )
    description = {
        "format": FORMAT,
        "kind": model.kind,
        "vocabulary": model.vocabulary,
        "max_tokens": model.max_tokens,
        "model": model.settings.model_dump(exclude={"training"}),
        "text": text.model_dump(),
        "decode": decode.model_dump(),
    }
    _description_path(folder, name).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def load_model(folder: Path, device: torch.device, name: str = "model") -> Stored:
    """The model, ready to be used."""
    description = _read_description(_description_path(folder, name))
    try:
        text, decode = Text.model_validate(description["text"]), Decode.model_validate(description["decode"])
        settings = Model.model_validate(description["model"])
        model = build_model(description["kind"], settings, description["vocabulary"], description["max_tokens"])
    except (KeyError, ValidationError, TypeError) as error:
        raise UserError(f"{_description_path(folder, name)}: not a model description ({error}).") from None
    path = folder / f"{name}.safetensors"
    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; the model directory is incomplete.") from None
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: truncated, damaged or of another model ({reason}): restore the file.") from None
    return Stored(model.to(device).eval(), text, decode)


def _description_path(folder: Path, name: str) -> Path:
    return folder / ("config.json" if name == "model" else f"{name}.json")


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written = description["format"]
    except FileNotFoundError:
        raise UserError(f"{path}: missing; this is not a model directory.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({str(error).splitlines()[0]}): restore the file.") from None
    if written != FORMAT:
        raise UserError(f"{path}: format {written}, but this version of emnat reads format {FORMAT}.")
    return description
