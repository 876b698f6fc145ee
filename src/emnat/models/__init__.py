"""Tensors → tensors: the AR teacher and the NAR students. Nothing here knows of text, files or training."""

from emnat.models.nat import NAT
from emnat.models.storage import AnyModel, build_model, describe_model, load_model, save_model
from emnat.models.teacher import Teacher

__all__ = ["NAT", "AnyModel", "Teacher", "build_model", "describe_model", "load_model", "save_model"]
