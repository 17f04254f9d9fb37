"""Times a step's ops with torch.profiler: on the host for a CPU, by their kernels for a GPU.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.cost.op_calls import OpMode, bind
from bench.errors import UserError
from bench.profilers.ops.op_join import CallsInOrder, Share, join, op_times
from bench.profilers.ops.op_nest import DeviceTime, Kind, Nest, SeenOp, host_of_steps, op_names
from bench.profilers.traces import Trace, read_trace
from bench.records import Copies, OpProfile, Phase, WorkSet
from bench.records.complexity import CallWork
from bench.training.devices import Device
from bench.training.window import Around, driven

#: The mark that torch.profiler's own schedule sets around a step.
STEP_MARK = "ProfilerStep#0"
#: Looks at one step's kernels.
_SESSIONS = 3
#: Of the pace: a profiled step that is so near to it is like those of the window.
_NEAR = 0.1
#: A larger trace is not kept; viewers load up to some hundred megabytes.
MOST_BYTES = 100_000_000


@contextmanager
def tracing(
    device: Device, *, shapes: bool = True, keep: Path | None = None
) -> Iterator[list[Trace]]:
    """Run the block under torch.profiler, up to the device's last kernel; then add its trace.

    The trace's own file becomes `keep`, in place of an earlier one. The host is always recorded:
    some versions record no kernels without it.
    """
    found: list[Trace] = []
    activities = [ProfilerActivity.CPU]
    if device.backend == "cuda":
        activities.append(ProfilerActivity.CUDA)
    else:
        # The profiler of a torch made for CUDA complains where there is none; read when it starts.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=activities, record_shapes=shapes) as profiler:
        yield found
        device.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        if keep is not None:
            shutil.move(file, keep)
        found.append(read_trace(keep or file))


def traced(step: Callable[[], object], device: Device, *, shapes: bool = True) -> Trace:
    """Run `step` once and return its trace."""
    with tracing(device, shapes=shapes) as found:
        step()
    return found[0]


#: Fields of `bench.records.OpProfile` that only a tool which sees the device can tell.
DEVICE_FIGURES = ("device_busy_share", "launch_gap_s", "copies")
#: The mark that torch's DataLoader sets around the next batch.
_LOADER_MARK = "enumerate(DataLoader)#"
_NO_LOADER = "no DataLoader of torch in the profiled steps"


@dataclass
class TimedStep:
    """One step under a tool; `missing` says why one of `DEVICE_FIGURES` is None.

    `kernels` is the number of those that the device ran, 0 where it has none.
    """

    wall_s: float
    ops: Sequence[SeenOp]
    kernels: int = 0
    busy_s: float | None = None
    launch_gap_s: float | None = None
    copies: tuple[Copies, ...] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    data_wait_s: float | None = None


@dataclass
class Profiled:
    """The base: ops run on the host, and an op's time is its wall time there."""

    method: ClassVar[str] = (
        f"torch.profiler of torch {torch.__version__}: wall time of each op on the host"
    )

    device: Device
    keep: Path | None = None

    def recording(self) -> Around[TimedStep]:
        """Run a step under the profiler, the device synchronised at both ends."""
        with tracing(self.device, keep=self.keep) as found:
            self.device.synchronize()
            begin = time.perf_counter()
            with record_function(STEP_MARK):
                yield
                self.device.synchronize()
            wall_s = time.perf_counter() - begin
        timed = self._read(found[0], wall_s)
        waits = [span for span in found[0].host if span.name.startswith(_LOADER_MARK)]
        waited_us = sum(span.end_us - span.begin_us for span in waits)
        timed.data_wait_s = waited_us / 1e6 if waits else None
        return timed

    def _read(self, trace: Trace, wall_s: float) -> TimedStep:
        why_not = dict.fromkeys(DEVICE_FIGURES, "ops run on the host itself")
        marks = [span for span in trace.host if span.name == STEP_MARK]
        nest = Nest(host_of_steps(trace, marks), timed=True)
        ops = [*nest.tops, *(op for op in nest.beside if op.kind is not Kind.LOADER)]
        return TimedStep(wall_s, ops, missing=why_not)


class ProfiledOnDevice(Profiled):
    """An op's time is that of the kernels and copies which it launched."""

    method: ClassVar[str] = (
        f"torch.profiler of torch {torch.__version__}: device time of the kernels and copies "
        "that each op launched"
    )

    def _read(self, trace: Trace, wall_s: float) -> TimedStep:
        nest, on_device = Nest(trace.host, timed=False), DeviceTime(trace.device)
        if not on_device.kernels:
            raise UserError(
                "torch.profiler recorded no kernel: CUPTI is in use or does not fit the driver; "
                "end other profilers, or update the NVIDIA driver"
            )
        on_device.give_to(nest, trace.launches)
        copies = on_device.copies()
        missing = {} if copies is not None else {"copies": "the trace lacks the bytes of copies"}
        figures = (len(on_device.kernels), on_device.busy_s, on_device.gap_s, copies)
        return TimedStep(wall_s, nest.tops, *figures, missing)


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


class Synchronized(Profiled):
    """An op's time is from its call to the device's end of it: launch and wait are in it.

    What overlaps in a step does not here, and torch.compile is not in effect: the mode sees every
    op, so nothing is fused.
    """

    method: ClassVar[str] = (
        "every dispatched op waited for: its time includes its launch and the wait, which "
        "overlap in a real step; torch.compile is without effect"
    )

    def recording(self) -> Around[TimedStep]:
        """Run a step op by op."""
        self.device.synchronize()
        begin = time.perf_counter()
        with _Stopwatch(self.device) as watch:
            yield
        self.device.synchronize()
        wall_s = time.perf_counter() - begin
        why_not = "each op was waited for, so the device ran differently from a step"
        return TimedStep(wall_s, watch.ops(), missing=dict.fromkeys(DEVICE_FIGURES, why_not))


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


def profile_ops(
    step: Callable[[], object],
    device: Device,
    work: Sequence[CallWork],
    iterations: int = 5,
    trace_file: Path | None = None,
    *,
    pace_s: float | None = None,
) -> OpProfile:
    """Run `step` as `profiling` has it, and return the times of its ops.

    With `pace_s` the tool has started in this process, and the step has just run.
    """
    started = pace_s is not None
    around = profiling(device, work, iterations, trace_file, started=started, pace_s=pace_s)
    return driven(around, step)


def profiling(
    device: Device,
    work: Sequence[CallWork],
    iterations: int,
    trace_file: Path | None = None,
    *,
    started: bool = False,
    pace_s: float | None = None,
) -> Around[OpProfile]:
    """Run a step once for the tool to start up, then `iterations` times to time its ops.

    Before each timed step goes one that is not: reading the last trace has taken the memory that
    the allocator keeps from step to step, and a step that pays for new pages is up to a third
    slower. Where the tool has `started` in this process and the step has just run, neither is done
    before the first. With `pace_s`, what the step takes without the tool, the one step is read that
    comes nearest to it: `iterations` are tried until one is within 10 % of it, as a machine that is
    not quiet may need.

    `work` are the cost model's calls of the same step (`bench.cost.estimate.op_work`). Times are of
    the device on CUDA, of the host on a CPU, and of synchronised ops on MPS; `method` says which.
    The trace of the last step is kept, compressed, as `trace_file` with `.gz` after it.
    """
    recorders = {"cpu": Profiled, "cuda": ProfiledOnDevice, "mps": Synchronized}
    recorder = recorders[device.backend](device, trace_file)
    if not started:
        yield from recorder.recording()
    steps: list[TimedStep] = []
    for number in range(iterations):
        if number or not started:
            yield
        steps.append((yield from recorder.recording()))
        if pace_s is not None and _distance(steps[-1], pace_s) <= _NEAR:
            break
    found = _profile(recorder.method, steps, work, pace_s)
    if trace_file is not None and trace_file.exists() and (why := pack_trace(trace_file)):
        return found.replaced({"trace": why})
    return found


def _distance(step: TimedStep, pace_s: float) -> float:
    return abs(step.wall_s / pace_s - 1)


def _profile(
    method: str, timed: Sequence[TimedStep], work: Sequence[CallWork], pace_s: float | None = None
) -> OpProfile:
    """Sum up the steps, but for those of which the profiler lost kernels (pytorch#192021)."""
    most = max(step.kernels for step in timed)
    steps = [step for step in timed if step.kernels == most]
    if lost := len(timed) - len(steps):
        method += f"; {lost} of {len(timed)} steps left out, of which it lost kernels"
    if pace_s is not None:
        steps = [min(steps, key=lambda step: _distance(step, pace_s))]
    shares = [join(step.ops, CallsInOrder(work)) for step in steps]
    facts: dict[str, Any] = {
        "device_busy_share": _median(step.busy_s and step.busy_s / step.wall_s for step in steps),
        "launch_gap_s": _median(step.launch_gap_s for step in steps),
        "copies": steps[-1].copies,
        "data_wait_s": _median(step.data_wait_s for step in steps),
    }
    reasons = steps[-1].missing | {"data_wait_s": _NO_LOADER}
    missing = {name: reasons[name] for name, fact in facts.items() if fact is None}
    if unseen := _unseen(shares[-1], work):
        missing["unseen"] = unseen
    return OpProfile(
        method=method,
        iterations=len(steps),
        step_time_s=median(step.wall_s for step in steps),
        ops=op_times(shares),
        missing=missing,
        **facts,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _unseen(shares: Iterable[Share], work: Sequence[CallWork]) -> str | None:
    """Say which calls of the cost model no timed op was joined with."""
    calls = (share.call for share in shares)
    seen = Counter((call.op, call.phase) for call in calls if isinstance(call, CallWork))
    rest = Counter((call.op, call.phase) for call in work) - seen
    if not rest:
        return None
    named = ", ".join(f"{count} {op} ({phase})" for (op, phase), count in rest.most_common(5))
    return f"{rest.total()} of the cost model's {len(work)} calls were not seen, such as {named}"
