"""Models for other run-times: students for ONNX Runtime, teachers for CTranslate2. Nothing here trains or searches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import torch

from emnat.artifacts import MANIFEST, check_artifact, inside, seal
from emnat.decoding.exported import ENCODER_FILE
from emnat.decoding.translator import REFEREE, model_folder
from emnat.errors import UserError
from emnat.models import NAT, Teacher, describe_model, load_model
from emnat.text import load_pipeline
from emnat.text.pipeline import VOCABULARY_FILE
from emnat.text.subwords import SPECIAL

Format = Literal["onnx", "ctranslate2"]
Precision = Literal["float32", "int8"]


def export_model(directory: Path, out: Path, form: Format, precision: Precision) -> None:
    """A student (of a run, or in a model directory) for ONNX Runtime, or a teacher for CTranslate2.

    The student's directory is then loaded like any other. `out` appears when it is whole.
    """
    folder = model_folder(directory)
    if out.exists():
        raise UserError(f"{out}: exists already: name a directory that does not.")
    if (folder / ENCODER_FILE).exists():
        raise UserError(f"{folder}: exported already: name the run, or the model that it was exported from.")
    if (folder / MANIFEST).exists():
        check_artifact(folder)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    stored = load_model(folder, torch.device("cpu"))
    shutil.copyfile(inside(folder, VOCABULARY_FILE), partial / VOCABULARY_FILE)
    try:
        if form == "onnx":
            _export_student(stored.model, folder, partial, precision)
        else:
            _export_teacher(stored.model, folder, partial)
    except ImportError as error:
        raise UserError(f"exporting needs {error.name}: pip install 'emnat[export]' (or 'emnat[bench]').") from None
    seal(partial, out, out.name, {}, 0, {"format": form, "precision": precision}, 0.0)


def _export_student(model: NAT | Teacher, folder: Path, out: Path, precision: Precision) -> None:
    from emnat.export.onnx_student import save_for_onnx  # noqa: PLC0415  # it needs the extra [export]

    if not isinstance(model, NAT):
        raise UserError(f"{folder}: a teacher; the format onnx is for students, ctranslate2 for teachers.")
    save_for_onnx(model, out, precision)
    for name in ("config.json", f"{REFEREE}.json", f"{REFEREE}.safetensors"):
        if (folder / name).exists():
            shutil.copyfile(inside(folder, name), out / name)


def _export_teacher(model: NAT | Teacher, folder: Path, out: Path) -> None:
    from emnat.export.ctranslate import BEGIN, END, UNKNOWN, save_for_ctranslate2  # noqa: PLC0415  # it needs [bench]

    if not isinstance(model, Teacher):
        raise UserError(f"{folder}: a student; the format ctranslate2 is for teachers, onnx for students.")
    vocabulary = load_pipeline(folder, describe_model(folder).text).vocabulary
    pieces = vocabulary.pieces(range(len(SPECIAL), len(vocabulary)))
    save_for_ctranslate2(model, ["<pad>", BEGIN, END, UNKNOWN, *pieces], out)
