"""The worker's side: the range within which ncu counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bench.errors import UnsupportedError
from bench.training.devices import Device


@contextmanager
def profiled_range(device: Device) -> Iterator[None]:
    """Let ncu count what is launched inside: only that, and all of it.

    The device is synchronised at both ends. ncu must run with `--profile-from-start off`,
    and the CUDA context must exist, as it does after a warm-up. Raises `UnsupportedError` on
    another backend.
    """
    if device.backend != "cuda":
        raise UnsupportedError(f"tool=ncu: counts on CUDA devices alone, not on {device.backend}")
    device.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
        device.synchronize()
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
