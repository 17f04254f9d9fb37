"""What one step launched, by name and count: two runs with the same did the same work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from bench.profilers.ops.device_time import DeviceTime
from bench.profilers.ops.op_nest import op_names
from bench.profilers.ops.torch_profiler import traced
from bench.records import WorkSet
from bench.training.devices import Device


def work_set(step: Callable[[], object], device: Device) -> WorkSet | None:
    """Run `step` once under torch.profiler; return what it launched, or None if nothing was seen.

    Kernels on CUDA, copies and memsets left out; elsewhere every op of torch or of a library, those
    that other ops call included, so that a backend's own way of doing an op is part of the answer.
    """
    events = traced(step, device, host=False, shapes=False)
    if device.backend == "cuda":
        names, unit = DeviceTime(events).kernels, "kernels"
    else:
        names, unit = op_names(events), "ops"
    return WorkSet(unit=unit, counts=Counter(names)) if names else None
