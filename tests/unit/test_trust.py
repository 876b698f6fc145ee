"""A model directory from a stranger: nothing outside of it is read or deleted, nothing it declares is trusted."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from tests.conftest import TINY

from emnat.artifacts import check_artifact, empty_artifact, seal
from emnat.config import Decode, Text
from emnat.data.grammar import draw_pairs
from emnat.decoding.translator import load_translator
from emnat.errors import UserError
from emnat.models import NAT, load_model, save_model
from emnat.text import train_vocabulary

CPU = torch.device("cpu")
LINES = [line for pair in draw_pairs(100, seed=1) for line in pair]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory without a manifest, as a stranger could make one."""
    folder = tmp_path / "model"
    folder.mkdir()
    serialized = train_vocabulary(lambda: iter(LINES), "bpe", 400, seed=1)
    (folder / "tokenizer.model").write_bytes(serialized)
    save_model(NAT(TINY, 400, 20), folder, Text(), Decode())
    assert load_translator(folder, "cpu").translate(["Der Arzt lacht."])
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.model"])
@pytest.mark.parametrize("link", ["absolute", "relative"])
def test_links_that_lead_out_are_refused(model: Path, name: str, link: str) -> None:
    outside = model.parent / "outside"
    shutil.move(model / name, outside)
    (model / name).symlink_to(outside if link == "absolute" else "../outside")
    with pytest.raises(UserError, match="leads out of"):
        load_translator(model, "cpu")


def test_links_within_are_fine(model: Path) -> None:
    (model / "weights").mkdir()
    shutil.move(model / "model.safetensors", model / "weights" / "real")
    (model / "model.safetensors").symlink_to("weights/real")
    load_translator(model, "cpu")


def test_a_manifest_cannot_point_elsewhere(tmp_path: Path) -> None:
    """Not to have a file read, and not to have it deleted."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    partial, final = tmp_path / "a.partial", tmp_path / "a"
    partial.mkdir()
    (partial / "x").write_text("x")
    seal(partial, final, "a", [], 1, {}, 0.0)
    manifest = json.loads((final / "manifest.json").read_text())
    manifest.pop("sha256")
    manifest["files"]["../precious"] = manifest["files"].pop("x")
    from emnat import artifacts  # noqa: PLC0415  # a stranger can compute checksums, too

    artifacts._write_manifest(final, manifest)
    for function in (check_artifact, empty_artifact):
        with pytest.raises(UserError, match="leads out of"):
            function(final)
    assert precious.read_text() == "kept"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden", 1 << 40),
        ("encoder_layers", 10**9),
        ("filter", 1 << 17),
        ("heads", 0),
        ("hidden", -8),
        ("hidden", "x"),
    ],
)
def test_declared_sizes_take_no_memory(model: Path, key: str, value: object) -> None:
    description = json.loads((model / "config.json").read_text())
    description["model"][key] = value
    (model / "config.json").write_text(json.dumps(description))
    with pytest.raises(UserError):
        load_model(model, CPU)


@pytest.mark.parametrize(("key", "value"), [("vocabulary", 1 << 60), ("max_tokens", 1 << 62), ("vocabulary", -1)])
def test_declared_vocabularies_take_no_memory(model: Path, key: str, value: int) -> None:
    description = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(description | {key: value}))
    with pytest.raises(UserError):
        load_model(model, CPU)


@pytest.mark.parametrize("shape", [[1 << 62, 1 << 62], [1 << 40]])
def test_shapes_in_safetensors_take_no_memory(model: Path, shape: list[int]) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 8]}}).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(UserError, match="restore the file"):
        load_model(model, CPU)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"#!/bin/sh\necho gone\n", b"\x0a\xff\xff\xff\xff\x0f"])
def test_a_tokenizer_that_is_none(model: Path, content: bytes) -> None:
    (model / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model"):
        load_translator(model, "cpu")


def test_keys_a_model_does_not_have(model: Path) -> None:
    description = json.loads((model / "config.json").read_text())
    description["text"]["command"] = "rm -rf /"
    (model / "config.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match="not a model description"):
        load_model(model, CPU)
