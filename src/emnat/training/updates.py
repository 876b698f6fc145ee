"""One update of the weights from a few batches. Nothing in it waits for the device.

On a GPU an update is captured as a CUDA graph (graphs.py), since small models are bound by launching kernels, not by
running them. Replays draw dropout anew: they read the generator's seed each time. For long trainings the layers are
compiled, too, which fuses what stands between the matrix products.
"""

from __future__ import annotations

import shutil
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from emnat import world
from emnat.config import Training
from emnat.data import Batch
from emnat.graphs import Graphs
from emnat.models import AnyModel
from emnat.models.layers import DecoderLayer, EncoderLayer
from emnat.progress import log

_WORTH_COMPILING = 1_000  # steps; compiling takes about as long as two thousand


class Updates:
    def __init__(
        self,
        model: AnyModel,
        optimiser: torch.optim.Optimizer,
        settings: Training,
        device: torch.device,
        precision: str,
    ) -> None:
        self._model, self._optimiser = model, optimiser
        if device.type == "cuda" and settings.steps >= _WORTH_COMPILING and _can_compile():
            _compile(model)
        # (Not a method: then the graphs, and the memory they hold, go with the training.)
        self._update = partial(_update, model, optimiser, settings, device, precision)
        # Graphs for every combination of several batches' shapes would be too many.
        self._graphs = Graphs(self._update, device, enabled=settings.accumulate == 1)
        self._device, self._pieces = device, 1  # into which batches are cut, once memory has run out

    def make(self, batches: list[Batch], rate: float) -> Tensor:
        """An update from the gradients of all batches together; gives the loss per target token."""
        self._model.train()
        self._optimiser.param_groups[0]["lr"].fill_(rate)
        while True:
            pieces = [piece for batch in batches for piece in batch.cut(self._pieces)]
            try:
                (loss,) = self._graphs(tuple(tensor for piece in pieces for tensor in piece.tensors()))
                return loss.clone()
            except torch.OutOfMemoryError:
                if self._pieces >= max(len(batch.source_lengths_B) for batch in batches):
                    raise
                self._go_on_with_less()

    def _go_on_with_less(self) -> None:
        """The gradients of two halves are those of the whole; graphs would hold memory for both."""
        self._pieces *= 2
        self._graphs = Graphs(self._update, self._device, enabled=False)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning("out of memory: batches are cut into %d from here on; a lower 'tokens' is faster.", self._pieces)


def _update(
    model: AnyModel,
    optimiser: torch.optim.Optimizer,
    settings: Training,
    device: torch.device,
    precision: str,
    *tensors: Tensor,
) -> tuple[Tensor]:
    batches = [Batch(*tensors[i : i + 4]) for i in range(0, len(tensors), 4)]
    optimiser.zero_grad(set_to_none=True)
    tokens = torch.stack([batch.target_lengths_B.sum() for batch in batches]).sum()
    total = torch.zeros((), device=device)
    for batch in batches:
        with world.autocast(device, precision):
            summed = model.loss(*batch.tensors(), settings.label_smoothing)
        loss = summed / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
    optimiser.step()
    return (total,)


def _can_compile() -> bool:
    if torch.are_deterministic_algorithms_enabled():  # which kernels a compiler makes, it may choose by their timing
        return False
    return find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


def _compile(model: AnyModel) -> None:
    """Layers of a kind share one compilation, which serves all shapes, and later models of the same sizes."""
    torch.fx.experimental._config.use_duck_shape = False  # S may equal T by chance
    for part in model.modules():
        if isinstance(part, EncoderLayer | DecoderLayer):
            part.compile(dynamic=True)
