"""What the measurement asks of a device; the base answers for one with nothing to wait for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch

from bench.records import DeviceInfo, MathMode
from bench.records.journal import Clock


class IterationTimer:
    """Times the iterations of one window without stopping the device between them.

    The base reads the host's clock, for devices whose operations end when their call returns.
    """

    kind: Literal["wall", "cuda_events", "mps_events"] = "wall"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[float] = []

    def mark(self) -> None:
        """Mark the start of the first iteration, or the end of one, where the next starts."""
        self._marks.append(self._clock())

    def times_s(self) -> list[float]:
        """Seconds of each iteration; the device has been synchronised."""
        return [end - begin for begin, end in pairwise(self._marks)]


class Device(ABC):
    """A backend: how to wait for it, time it, and what it is.

    The base is a device whose operations end when their call returns, and which counts nothing.
    """

    backend: Literal["cpu", "cuda", "mps"]
    torch_device: torch.device
    timer: type[IterationTimer] = IterationTimer
    default_batch_size: int
    prefers_fp32_depthwise = False
    pins_memory = False
    supports_cuda_graphs = False
    #: Whether the fused optimizer takes the loss scaler's factor and leaves a step out by itself.
    fuses_loss_scaling = True
    #: Whether a profiler leaves something in the process that later iterations pay for.
    profiler_stays = False

    def __init__(self, local_rank: int = 0) -> None:
        """Take this machine's device number `local_rank`, where there are several."""

    @classmethod
    def count(cls) -> int | None:
        """How many processes of this machine can have one each; None: they share it."""
        return 1

    @abstractmethod
    def info(self) -> DeviceInfo:
        """Return what is known of the device."""

    def channels_last(self, mode: MathMode) -> tuple[bool, ...]:
        """Whether convolutions in `mode` are channels-last; several where it depends on them."""
        return (False,)

    @abstractmethod
    def native_math(self, mode: str) -> bool:
        """Whether the hardware itself computes convolutions and products in `mode`."""

    def synchronize(self) -> None:
        """Return when every operation queued on the device has ended."""

    def reset_peak_memory(self) -> None:
        """Restart the accounting of peak memory."""

    def peak_memory_bytes(self) -> tuple[int, int] | None:
        """Peak bytes (allocated, reserved) since the reset, or None if the backend counts none."""
        return None

    def release_cached_memory(self) -> None:
        """Give back what the allocator holds and nothing uses."""

    def hidden_syncs(self, step: Callable[[], object]) -> int | None:
        """Run `step` once and count the host's waits for the device in it, or None untried."""
        return None
