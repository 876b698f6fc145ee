from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from emnat.config import Decode, Text
from emnat.errors import UserError
from emnat.models import NAT, load_model, save_model

CPU = torch.device("cpu")


def test_half_of_the_bits_on_disk_all_of_them_in_memory(tmp_path: Path, tiny_student: NAT) -> None:
    with torch.no_grad():
        tiny_student.length_head.weight[0, 0] = 1e6  # more than 16 bits can say: this tensor keeps all of its own
    save_model(tiny_student, tmp_path, Text(), Decode(), half=True)
    stored = load_file(tmp_path / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16, torch.float32}
    loaded = load_model(tmp_path, CPU).model.state_dict()
    for name, value in tiny_student.state_dict().items():
        assert loaded[name].dtype == torch.float32
        assert torch.allclose(loaded[name], value, rtol=1e-3, atol=1e-7)


def test_round_trip(tiny_student: NAT, tmp_path: Path) -> None:
    save_model(tiny_student, tmp_path, Text(lowercase=True), Decode(beam=7))
    stored = load_model(tmp_path, CPU)
    assert stored.text.lowercase
    assert stored.decode.beam == 7
    assert all(torch.equal(stored.model.state_dict()[k], v) for k, v in tiny_student.state_dict().items())
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "config.json"}


@pytest.mark.parametrize("mask", [0o022, 0o007])
def test_whoever_may_read_other_files_may_read_weights(tiny_student: NAT, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for _ in range(2):  # the second time in the place of the first
            save_model(tiny_student, tmp_path, Text(), Decode())
            assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask
    finally:
        os.umask(before)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_truncated_weights(tiny_student: NAT, tmp_path: Path, keep: int) -> None:
    save_model(tiny_student, tmp_path, Text(), Decode())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"model\.safetensors: truncated"):
        load_model(tmp_path, CPU)


def test_missing_and_foreign_files(tiny_student: NAT, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a model directory"):
        load_model(tmp_path, CPU)
    save_model(tiny_student, tmp_path, Text(), Decode())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="incomplete"):
        load_model(tmp_path, CPU)
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(description | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        load_model(tmp_path, CPU)
    (tmp_path / "config.json").write_text(json.dumps(description | {"kind": "rnn"}))
    with pytest.raises(UserError, match="not a model description"):
        load_model(tmp_path, CPU)
