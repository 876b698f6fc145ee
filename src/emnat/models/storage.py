"""Models on disk: weights in safetensors, shape in config.json. Reading one executes nothing."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from emnat.artifacts import FORMAT, MANIFEST, inside, read_manifest
from emnat.config import Count, Decode, Model, Text, Width
from emnat.errors import UserError
from emnat.models.nat import NAT
from emnat.models.teacher import Teacher
from emnat.world import is_out_of_memory

AnyModel = Teacher | NAT
_KINDS: dict[str, type[Teacher] | type[NAT]] = {Teacher.kind: Teacher, NAT.kind: NAT}
_VOCABULARY, _POSITIONS = TypeAdapter[int](Count), TypeAdapter[int](Width)


def build_model(kind: str, settings: Model, vocabulary: int, max_tokens: int) -> AnyModel:
    return _KINDS[kind](settings, vocabulary, max_tokens)


@dataclass(frozen=True)
class Description:
    """What a model is, how its text is to be treated, and its output decoded."""

    kind: str
    settings: Model
    vocabulary: int
    max_tokens: int
    text: Text
    decode: Decode

    def as_json(self) -> str:
        values = {
            "format": FORMAT,
            "kind": self.kind,
            "vocabulary": self.vocabulary,
            "max_tokens": self.max_tokens,
            "model": self.settings.model_dump(exclude={"training"}),
            "text": self.text.model_dump(),
            "decode": self.decode.model_dump(),
        }
        return json.dumps(values, indent=1) + "\n"


@dataclass(frozen=True)
class Stored:
    """A model as it comes from disk."""

    model: AnyModel
    text: Text
    decode: Decode


def save_model(
    model: AnyModel, folder: Path, text: Text, decode: Decode, name: str = "model", *, half: bool = False
) -> None:
    """`NAME.safetensors`, and `config.json` (for another name: `NAME.json`) with all that is needed to load it.

    `half` stores 16 bits a weight, for models that compute in fewer (bf16) anyway; once loaded, weights have 32.
    """
    weights = {key: value.contiguous().cpu() for key, value in model.state_dict().items()}
    if half:
        weights = {key: value.half() if value.half().isfinite().all() else value for key, value in weights.items()}
    write_tensors(weights, folder / f"{name}.safetensors", {})
    description = Description(model.kind, model.settings, model.vocabulary, model.max_tokens, text, decode)
    _description_path(folder, name).write_text(description.as_json(), encoding="utf-8")


def write_tensors(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
    """As safetensors; who may read it, and what goes wrong with the disk (an OSError), is as with any other file."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata)  # since 0.8 a new file in its place, for its owner alone
        path.chmod(mode)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def load_model(folder: Path, device: torch.device, name: str = "model") -> Stored:
    """The model, ready to be used."""
    described = describe_model(folder, name)
    path = inside(folder, f"{name}.safetensors")
    try:
        path.open("rb").close()  # what stands in the way is an OSError that says so; safetensors takes all for absence
        with torch.device("meta"):  # no memory until the file has shown that it holds what it should
            model = build_model(described.kind, described.settings, described.vocabulary, described.max_tokens)
        model.load_state_dict({key: value.float() for key, value in load_file(path).items()}, assign=True)
    except FileNotFoundError:
        raise UserError(f"{path}: missing; the model directory is incomplete.") from None
    except (SafetensorError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: truncated, damaged or of another model ({reason}): restore the file.") from None
    return Stored(model.to(device).eval(), described.text, described.decode)


def describe_model(folder: Path, name: str = "model") -> Description:
    path = _description_path(folder, name)
    values = _read_description(path)
    try:
        if values["kind"] not in _KINDS:
            raise ValueError(f"unknown kind {values['kind']!r}")
        return Description(
            values["kind"],
            Model.model_validate(values["model"]),
            _VOCABULARY.validate_python(values["vocabulary"]),
            _POSITIONS.validate_python(values["max_tokens"]),
            Text.model_validate(values["text"]),
            Decode.model_validate(values["decode"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not a model description ({error}).") from None


def _description_path(folder: Path, name: str) -> Path:
    return inside(folder, "config.json" if name == "model" else f"{name}.json")


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written = description["format"]
    except FileNotFoundError:
        if (path.parent / MANIFEST).exists() and read_manifest(path.parent).emptied:
            raise UserError(
                f"{path.parent}: emptied by 'emnat slim'; of this iteration only measures are left."
            ) from None
        raise UserError(f"{path}: missing; this is not a model directory.") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({str(error).splitlines()[0]}): restore the file.") from None
    if written != FORMAT:
        raise UserError(f"{path}: format {written}, but this version of emnat reads format {FORMAT}.")
    return description
