"""A model directory from a stranger: nothing outside of it is read or deleted, nothing it declares is trusted."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from pathlib import Path

import pytest
import torch
from tests.conftest import TINY

from emnat import artifacts
from emnat.artifacts import check_artifact, empty_artifact, read_manifest, seal
from emnat.config import Decode, Text
from emnat.data.grammar import draw_pairs
from emnat.decoding.translator import load_translator
from emnat.errors import UserError
from emnat.export import export_model
from emnat.models import NAT, describe_model, load_model, save_model
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
    seal(partial, final, "a", {}, 1, {}, 0.0)
    manifest = read_manifest(final)
    manifest.files["../precious"] = manifest.files.pop("x")
    artifacts._write_manifest(final, manifest)  # a stranger can compute checksums, too
    for function in (check_artifact, empty_artifact):
        with pytest.raises(UserError, match="leads out of"):
            function(final)
    assert precious.read_text() == "kept"


@pytest.mark.parametrize(
    "change",
    [
        {"files": None},
        {"files": ["x"]},
        {"files": {"x": {"bytes": "1", "sha256": "0"}}},
        {"files": {"x\0": {"bytes": 1, "sha256": "0"}}},
        {"parents": 3},
        {"more": 1},
    ],
)
def test_manifests_of_another_shape(tmp_path: Path, change: dict[str, object]) -> None:
    values = {"format": artifacts.FORMAT, "artifact": "a", "parents": [], "seed": 1, "emnat": "0", "seconds": 0.0}
    values |= {"facts": {}, "files": {}} | change
    path = tmp_path / "manifest.json"
    path.write_bytes(artifacts._serialised(values | {"sha256": artifacts._digest(values)}))
    with pytest.raises(UserError, match=r"not written by emnat|leads out of"):
        check_artifact(tmp_path)


def test_json_too_deep_to_be_read(model: Path) -> None:
    for name, read in (("manifest.json", read_manifest), ("config.json", describe_model)):
        (model / name).write_text("[" * 100_000)
        with pytest.raises(UserError, match="damaged"):
            read(model)


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


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocabulary", 1 << 60), ("max_tokens", 1 << 62), ("vocabulary", -1), ("vocabulary", float("inf"))],
)
def test_declared_vocabularies_take_no_memory(model: Path, key: str, value: float) -> None:
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


def test_exporting_copies_nothing_from_elsewhere(model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copyfile(model / "tokenizer.model", secret)
    (model / "tokenizer.model").unlink()
    (model / "tokenizer.model").symlink_to(secret)
    with pytest.raises(UserError, match="leads out of"):
        export_model(model, tmp_path / "out", "onnx", "float32")
    assert not (tmp_path / "out").exists()


def test_links_out_that_no_manifest_names(tmp_path: Path) -> None:
    """What an artifact's reader reads by name is not only what its manifest lists."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a.partial").mkdir()
    seal(tmp_path / "a.partial", tmp_path / "a", "a", {}, 1, {}, 0.0)
    (tmp_path / "a/odd.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="leads out of"):
        check_artifact(tmp_path / "a")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model"])
def test_links_in_a_circle_and_pipes(model: Path, name: str) -> None:
    (model / name).unlink()
    (model / name).symlink_to(model / name)
    with pytest.raises(UserError, match=re.escape(name)):
        load_translator(model, "cpu")
    (model / name).unlink()
    os.mkfifo(model / name)
    with pytest.raises(UserError, match="neither a file nor a directory"):
        load_translator(model, "cpu")


def test_a_referee_that_is_a_student(model: Path) -> None:
    for kind in ("json", "safetensors"):
        shutil.copyfile(model / ("config.json" if kind == "json" else f"model.{kind}"), model / f"referee.{kind}")
    with pytest.raises(UserError, match="no teacher"):
        load_translator(model, "cpu")
