"""A larger model that computes what a smaller one does: from there its training can begin.

The larger holds every hidden number of the smaller several times ("copies", one block after another), so a matrix that
reads them divides by their count, and heads and filters are repeated likewise; layers it has in addition change
nothing at first. What its own random weights add to that is taken out as far as equal copies would see it: the output
is the same, yet no two copies learn the same. After Chen et al., Net2Net (2016).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from emnat.config import Model
from emnat.models.layers import Embedding
from emnat.models.storage import AnyModel

_JOINT = {"inputs": 3, "key_value": 2}  # matrices that are several, one below the other, each with copies of its own
_ADDING = ("output", "outer")  # what a layer adds to its input ends in one of these


def can_begin_from(small: Model, large: Model) -> bool:
    """Whether sizes are the same or multiples; heads keep their size, and layers must let their input pass."""
    return _sizes(small) == _sizes(large) or (
        small.norm == large.norm == "pre"
        and large.hidden % small.hidden == 0
        and large.filter % small.filter == 0
        and large.hidden // large.heads == small.hidden // small.heads
        and large.encoder_layers >= small.encoder_layers
        and large.decoder_layers >= small.decoder_layers
    )


def begin_from(small: AnyModel, large: AnyModel) -> None:
    """Give `large`, which is freshly initialised, the function of `small`."""
    if _sizes(small.settings) == _sizes(large.settings):
        large.load_state_dict(small.state_dict())
    else:
        _grow(small, large)


def _sizes(settings: Model) -> dict[str, Any]:
    return settings.model_dump(include={"encoder_layers", "decoder_layers", "hidden", "filter", "heads", "norm"})


@torch.no_grad()
def _grow(small: AnyModel, large: AnyModel) -> None:
    assert can_begin_from(small.settings, large.settings)
    copies = large.settings.hidden // small.settings.hidden
    known = dict(small.named_modules())
    for name, part in large.named_modules():
        kind, origin = name.rpartition(".")[2], known.get(name)
        if isinstance(part, Embedding) and isinstance(origin, Embedding):
            part.tokens.copy_(origin.tokens.tile(copies) / math.sqrt(copies))  # since its scale grows by the root
            part.source_positions.copy_(origin.source_positions.tile(copies))
            part.target_positions.copy_(origin.target_positions.tile(copies))
        elif isinstance(part, nn.LayerNorm) and isinstance(origin, nn.LayerNorm):
            part.weight.copy_(origin.weight.tile(copies))
            part.bias.copy_(origin.bias.tile(copies))
        elif isinstance(part, nn.Linear) and isinstance(origin, nn.Linear):
            part.weight.copy_(_grown(origin.weight, part.weight, _JOINT.get(kind, 1)))
            part.bias.copy_(_repeated(origin.bias[:, None], len(part.bias), 1, _JOINT.get(kind, 1))[:, 0])
        elif isinstance(part, nn.Linear) and kind in _ADDING:
            part.weight.zero_()
            part.bias.zero_()
    # The output reads the tokens' vectors, too: copies, each smaller by the root, make scores larger by the root.
    assert isinstance(large.norm, nn.LayerNorm)
    large.norm.weight.div_(math.sqrt(copies))
    large.norm.bias.div_(math.sqrt(copies))


def _grown(small_OI: Tensor, random_OI: Tensor, joint: int) -> Tensor:
    rows, columns = random_OI.shape
    copies = columns // small_OI.shape[1]
    random_OCI = random_OI.view(rows, copies, -1)
    seen_by_none_OI = (random_OCI - random_OCI.mean(1, keepdim=True)).flatten(1)
    return _repeated(small_OI, rows, copies, joint) / copies + seen_by_none_OI


def _repeated(small_OI: Tensor, rows: int, copies: int, joint: int) -> Tensor:
    """The matrix in `rows` rows, each of its `joint` parts repeated on its own, its columns in so many copies."""
    parts_JOI = small_OI.view(joint, -1, small_OI.shape[1])
    return parts_JOI.tile(1, rows // small_OI.shape[0], copies).flatten(0, 1)
