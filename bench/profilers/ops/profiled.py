"""Times ops with torch.profiler: on the host for a CPU, by their kernels for a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bench.errors import UserError
from bench.profilers.ops.device_time import DeviceTime
from bench.profilers.ops.nest import Nest
from bench.profilers.ops.recorder import DEVICE_FIGURES, TimedStep
from bench.profilers.ops.trace import Event, traced
from bench.training.devices import Device


class Profiled:
    """The base: ops run on the host, and an op's time is its wall time there."""

    method = f"torch.profiler of torch {torch.__version__}: wall time of each op on the host"

    def __init__(self, step: Callable[[], object], device: Device) -> None:
        self._step = step
        self._device = device
        self._wall_s = 0.0

    def record(self) -> TimedStep:
        """Run the step once under the profiler."""
        return self._read(traced(self._timed, self._device))

    def _timed(self) -> None:
        self._device.synchronize()
        begin = time.perf_counter()
        self._step()
        self._device.synchronize()
        self._wall_s = time.perf_counter() - begin

    def _read(self, events: list[Event]) -> TimedStep:
        why_not = dict.fromkeys(DEVICE_FIGURES, "ops run on the host itself")
        return TimedStep(self._wall_s, Nest(events, timed=True).tops, missing=why_not)


class ProfiledOnDevice(Profiled):
    """An op's time is that of the kernels and copies which it launched."""

    method = (
        f"torch.profiler of torch {torch.__version__}: device time of the kernels and copies "
        "that each op launched"
    )

    def _read(self, events: list[Event]) -> TimedStep:
        nest, on_device = Nest(events, timed=False), DeviceTime(events)
        if not on_device.kernels:
            raise UserError(
                "torch.profiler recorded no kernel: CUPTI is in use or does not fit the driver; "
                "end other profilers, or update the NVIDIA driver"
            )
        on_device.give_to(nest)
        copies = on_device.copies()
        missing = {} if copies is not None else {"copies": "the trace lacks the bytes of copies"}
        return TimedStep(
            self._wall_s, nest.tops, on_device.busy_s, on_device.gap_s, copies, missing
        )
