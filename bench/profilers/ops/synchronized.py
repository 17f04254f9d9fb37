"""Times ops by waiting for the device after each: for devices that torch.profiler cannot see."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from bench.cost.op_calls import OpMode, bind
from bench.profilers.ops.timed_step import DEVICE_FIGURES, Kind, SeenOp, TimedStep
from bench.records import Phase
from bench.training.devices import Device

_WHY_NOT = "each op was waited for, so the device ran differently from a step"


class Synchronized:
    """An op's time is from its call to the device's end of it: launch and wait are in it.

    What overlaps in a step does not here, and torch.compile is not in effect: the mode sees every
    op, so nothing is fused.
    """

    method = (
        "every dispatched op waited for: its time includes its launch and the wait, which "
        "overlap in a real step; torch.compile is without effect"
    )

    def __init__(self, step: Callable[[], object], device: Device) -> None:
        self._step = step
        self._device = device

    def record(self) -> TimedStep:
        """Run the step once, op by op."""
        self._device.synchronize()
        begin = time.perf_counter()
        with _Stopwatch(self._device) as watch:
            self._step()
        self._device.synchronize()
        wall_s = time.perf_counter() - begin
        return TimedStep(wall_s, watch.ops(), missing=dict.fromkeys(DEVICE_FIGURES, _WHY_NOT))


class _Stopwatch(OpMode):
    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._ops: list[SeenOp] = []

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op to its end and note it."""
        begin = time.perf_counter()
        result = func(*args, **kwargs)
        self._device.synchronize()
        seconds = time.perf_counter() - begin
        if isinstance(func, torch._ops.OpOverload) and func.namespace != "profiler":
            call = bind(func, args, kwargs, result)
            in_backward = torch._C._current_graph_task_id() != -1
            phase: Phase | None = "backward" if in_backward else None
            self._ops.append(SeenOp(call.name, Kind.OP, phase, call.shapes, seconds, [], seconds))
        return result

    def ops(self) -> list[SeenOp]:
        """Return the ops; what ran after the last of backward's is the optimizer's."""
        backward = [index for index, op in enumerate(self._ops) if op.phase == "backward"]
        for index, op in enumerate(self._ops):
            if backward and op.phase is None:
                op.phase = "optimizer" if index > backward[-1] else "forward"
        return self._ops
