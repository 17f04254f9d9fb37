"""What the measurement asks of a device; the CPU's answers are mostly 'nothing to do'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch

from bench.records import DeviceInfo

Clock = Callable[[], float]


class IterationTimer(Protocol):
    """Times the iterations of one window without stopping the device between them."""

    @property
    def kind(self) -> Literal["wall", "cuda_events", "mps_events"]:
        """Which clock ran."""

    def start(self) -> None:
        """Mark the start of the first iteration; the device is idle."""

    def lap(self) -> None:
        """Mark the end of an iteration, which is the start of the next."""

    def times_s(self) -> list[float]:
        """Seconds of each iteration; the device has been synchronised."""


class Device(Protocol):
    """A backend: how to wait for it, time it, and what it is."""

    default_batch_size: int
    prefers_channels_last: bool
    pins_memory: bool
    supports_cuda_graphs: bool
    torch_device: torch.device

    @property
    def backend(self) -> Literal["cpu", "cuda", "mps"]:
        """Name of the backend."""

    @property
    def default_max_seconds(self) -> float | None:
        """What `max_seconds=auto` means."""

    def synchronize(self) -> None:
        """Return when every operation queued on the device has ended."""

    def timer(self, clock: Clock) -> IterationTimer:
        """Return a timer of iterations on this device, `clock` being the host's."""

    def info(self) -> DeviceInfo:
        """Return what is known of the device."""

    def reset_peak_memory(self) -> None:
        """Start the accounting of peak memory anew."""

    def peak_memory_bytes(self) -> tuple[int, int] | None:
        """Peak bytes (allocated, reserved) since the reset, or None where nobody counts."""

    def native_math(self, mode: str) -> bool:
        """Whether the hardware itself computes convolutions and products in `mode`."""

    def hidden_syncs(self, step: Callable[[], object]) -> int | None:
        """Run `step` once and count the host's waits for the device inside it, if it can."""


class WallTimer:
    """Laps of the host's clock, for devices whose operations end when their call returns."""

    kind: Literal["wall"] = "wall"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[float] = []

    def start(self) -> None:
        """Mark the start of the first iteration."""
        self._marks.append(self._clock())

    def lap(self) -> None:
        """Mark the end of an iteration."""
        self._marks.append(self._clock())

    def times_s(self) -> list[float]:
        """Seconds between neighbouring marks."""
        return [end - begin for begin, end in zip(self._marks, self._marks[1:], strict=False)]
