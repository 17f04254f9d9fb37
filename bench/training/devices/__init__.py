"""The hardware a step runs on: one file per backend beside their base."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.errors import UnsupportedError
from bench.training.devices.base import Device, IterationTimer
from bench.training.devices.cpu import CpuDevice
from bench.training.devices.cuda import CudaDevice
from bench.training.devices.mps import MpsDevice

__all__ = ["Device", "IterationTimer", "open_device"]


def open_device(backend: str, *, local_rank: int = 0, devices: int = 1) -> Device:
    """Return the device of `backend`; auto takes CUDA, then MPS, then the CPU.

    `local_rank` is this process's number among the `devices` processes of this machine that have
    one each. Raises `UnsupportedError` where torch cannot use the backend on this machine, or
    finds too few devices.
    """
    usable: dict[str, tuple[Callable[[], bool], type[Device], str]] = {
        "cuda": (
            torch.cuda.is_available,
            CudaDevice,
            "an NVIDIA GPU with a driver, or an AMD one",
        ),
        "mps": (torch.backends.mps.is_available, MpsDevice, "Apple silicon with macOS 14"),
        "cpu": (lambda: True, CpuDevice, "a processor"),
    }
    if backend == "auto":
        backend = next(name for name, (available, _, _) in usable.items() if available())
    available, kind, needs = usable[backend]
    if not available():
        here = ", ".join(name for name, (is_here, _, _) in usable.items() if is_here())
        raise UnsupportedError(
            f"backend={backend!r}: torch {torch.__version__} finds no {backend} device here "
            f"(it needs {needs}); use backend={here}, or ask mlproject doctor why"
        )
    count = kind.count()
    if count is not None and devices > count:
        raise UnsupportedError(
            f"devices={devices}: torch finds {count} {backend} device{'s' * (count != 1)} on this "
            f"machine; use devices={count}"
        )
    return kind(local_rank)
