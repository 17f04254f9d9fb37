"""Times ops with torch.profiler: on the host for a CPU, by their kernels for a GPU.

A step is read from the trace that torch.profiler exports (`bench.profilers.traces`). The trace's
format has been stable for years, every viewer reads it, and it alone has the bytes of a copy.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.cost.op_calls import OpMode, bind
from bench.errors import UserError
from bench.profilers.ops.device_time import DeviceTime
from bench.profilers.ops.op_nest import DEVICE_FIGURES, Kind, Nest, SeenOp, TimedStep, op_names
from bench.profilers.traces import Trace, read_trace
from bench.records import Phase, WorkSet
from bench.training.devices import Device

#: The mark that torch.profiler's own schedule sets around a step.
STEP_MARK = "ProfilerStep#0"
#: Looks at one step's kernels.
_SESSIONS = 3
#: A larger trace is not kept; viewers load up to some hundred megabytes.
MOST_BYTES = 100_000_000


def traced(
    step: Callable[[], object], device: Device, *, shapes: bool = True, keep: Path | None = None
) -> Trace:
    """Run `step` once under torch.profiler, up to the device's last kernel; return its trace.

    The trace's own file becomes `keep`, in place of an earlier one. The host is always recorded:
    some versions record no kernels without it.
    """
    activities = [ProfilerActivity.CPU]
    if device.backend == "cuda":
        activities.append(ProfilerActivity.CUDA)
    else:
        # The profiler of a torch made for CUDA complains where there is none; read when it starts.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=activities, record_shapes=shapes) as profiler:
        step()
        device.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        if keep is not None:
            shutil.move(file, keep)
        return read_trace(keep or file)


class Profiled:
    """The base: ops run on the host, and an op's time is its wall time there."""

    method = f"torch.profiler of torch {torch.__version__}: wall time of each op on the host"

    def __init__(
        self, step: Callable[[], object], device: Device, keep: Path | None = None
    ) -> None:
        self._step = step
        self._device = device
        self._keep = keep
        self._wall_s = 0.0

    def record(self) -> TimedStep:
        """Run the step once under the profiler."""
        return self._read(traced(self._timed, self._device, keep=self._keep))

    def _timed(self) -> None:
        self._device.synchronize()
        begin = time.perf_counter()
        with record_function(STEP_MARK):
            self._step()
            self._device.synchronize()
        self._wall_s = time.perf_counter() - begin

    def _read(self, trace: Trace) -> TimedStep:
        why_not = dict.fromkeys(DEVICE_FIGURES, "ops run on the host itself")
        return TimedStep(self._wall_s, Nest(trace.host, timed=True).tops, missing=why_not)


class ProfiledOnDevice(Profiled):
    """An op's time is that of the kernels and copies which it launched."""

    method = (
        f"torch.profiler of torch {torch.__version__}: device time of the kernels and copies "
        "that each op launched"
    )

    def _read(self, trace: Trace) -> TimedStep:
        nest, on_device = Nest(trace.host, timed=False), DeviceTime(trace.device)
        if not on_device.kernels:
            raise UserError(
                "torch.profiler recorded no kernel: CUPTI is in use or does not fit the driver; "
                "end other profilers, or update the NVIDIA driver"
            )
        on_device.give_to(nest, trace.launches)
        copies = on_device.copies()
        missing = {} if copies is not None else {"copies": "the trace lacks the bytes of copies"}
        return TimedStep(
            self._wall_s,
            nest.tops,
            len(on_device.kernels),
            on_device.busy_s,
            on_device.gap_s,
            copies,
            missing,
        )


def pack_trace(file: Path) -> str | None:
    """Compress the trace `file` into `file` with `.gz` after it; why it is not kept, or None."""
    packed = file.with_name(f"{file.name}.gz")
    with file.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    file.unlink()
    size_bytes = packed.stat().st_size
    if size_bytes <= MOST_BYTES:
        return None
    packed.unlink()
    return f"{size_bytes / 1e6:.0f} MB, and no trace of more than {MOST_BYTES / 1e6:.0f} MB is kept"


def work_set(step: Callable[[], object], device: Device) -> WorkSet | None:
    """Run `step` under torch.profiler; return what it launched, or None if nothing was seen.

    Kernels on CUDA, copies and memsets left out; elsewhere every op of torch or of a library, those
    that other ops call included, so that a backend's own way of doing an op is part of the answer.
    The step runs once, on CUDA `_SESSIONS` times: the profiler loses kernels of some sessions
    (pytorch#192021), so the one with the most is taken.
    """
    on_cuda = device.backend == "cuda"
    found: list[list[str]] = []
    for _ in range(_SESSIONS if on_cuda else 1):
        with contextlib.suppress(UserError):  # an empty trace
            trace = traced(step, device, shapes=False)
            found.append(DeviceTime(trace.device).kernels if on_cuda else op_names(trace.host))
    names = max(found, key=len, default=[])
    unit: Literal["kernels", "ops"] = "kernels" if on_cuda else "ops"
    return WorkSet(unit=unit, counts=Counter(names)) if names else None


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
