"""Functions of tensors, captured as CUDA graphs: a replay launches hundreds of small kernels at once.

Elsewhere than on a GPU, or until a shape has come twice, the function just runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: Outputs  # where the graph reads
    outputs: Outputs  # where it writes


class Graphs:
    """Calls `function(*tensors, *constants)`; every combination of shapes and constants has a graph of its own.

    The function must not wait for the device and must do the same kernels at every call of a combination. It may change
    tensors that stay where they are (weights, caches). What it returns holds until the next call.
    """

    def __init__(self, function: Callable[..., Outputs], device: torch.device, enabled: bool = True) -> None:
        self._function = function
        self._enabled = enabled and device.type == "cuda"
        self._device = device
        self._pool = torch.cuda.graph_pool_handle() if self._enabled else None
        self._seen: set[Hashable] = set()
        self._captured: dict[Hashable, _Captured] = {}

    def __call__(self, tensors: Outputs, *constants: Hashable) -> Outputs:
        key = (*(tensor.shape for tensor in tensors), *constants)
        if not self._enabled or key not in self._seen:
            # The first time, whatever sets itself up lazily (optimisers, libraries) does so outside of a capture.
            self._seen.add(key)
            return self._function(*(tensor.to(self._device, non_blocking=True) for tensor in tensors), *constants)
        captured = self._captured.get(key)
        if captured is None:
            captured = self._captured[key] = self._capture(tensors, constants)
        for static, new in zip(captured.inputs, tensors, strict=True):
            static.copy_(new, non_blocking=True)
        captured.graph.replay()
        return captured.outputs

    def _capture(self, tensors: Outputs, constants: tuple[Hashable, ...]) -> _Captured:
        inputs = tuple(tensor.to(self._device, copy=True) for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on preparing batches meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = self._function(*inputs, *constants)
        return _Captured(graph, inputs, outputs)


class Beside:
    """`with beside: …` inside a capture runs next to what follows, until `beside.wait()`; elsewhere, in its turn."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def __enter__(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._before, self._stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(self._before)
            torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            torch.cuda.set_stream(self._before)

    def wait(self) -> None:
        if self._stream is not None:
            self._before.wait_stream(self._stream)
