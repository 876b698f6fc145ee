"""The machine a process runs on: device, precision, seeds. Nothing here knows of models or text."""

from __future__ import annotations

import contextlib
import hashlib
import os

import torch

from emnat.errors import UserError


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU when there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device = {name!r} is no device: use 'auto', 'cpu' or 'cuda'.") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device = {name!r}: emnat computes on 'cpu' or 'cuda' ('auto' chooses).")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device = {name!r}, but PyTorch does not see it here: use device = 'cpu' or 'auto'.")
    return device


def cores() -> int:
    """Those that this process may use: a job may own a few of a large machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch has a type of its own for a GPU's memory, but none for the machine's."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def uses_bf16(device: torch.device, precision: str) -> bool:
    """`auto` means bf16 on a GPU and float32 on a CPU."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """bf16 arithmetic where asked for, on weights that stay float32."""
    if uses_bf16(device, precision):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def be_deterministic() -> None:
    """Have this process use only kernels that give the same bits every time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA is first used
    torch.use_deterministic_algorithms(True)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on every part, so that each stage and step draws its own randomness."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def describe(device: torch.device) -> str:
    """The hardware, in words, for signatures of timings."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({torch.get_num_threads()} threads)"
