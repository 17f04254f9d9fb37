"""Times a step's ops with torch.profiler: on the host for a CPU, by their kernels for a GPU.

A step is read from the trace that torch.profiler exports (`bench.profilers.traces`). The trace's
format has been stable for years, every viewer reads it, and it alone has the bytes of a copy.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import mul
from pathlib import Path
from statistics import median
from typing import Any, Literal

import psutil
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.cost.op_table import OpMode, bind
from bench.errors import Unknown, UserError
from bench.profilers.traces import HostSpan, ProfilerTrace, keep_trace, read_trace
from bench.profilers.traces.nest import DeviceTime, Kind, Nest, SeenOp, host_of_steps, op_names
from bench.profilers.traces.ops import CallsInOrder, join, op_times
from bench.records import OpProfile, Phase, WorkSet
from bench.records.complexity import CallWork
from bench.records.profile import calm, profiler_cost
from bench.training.devices import Device
from bench.training.window import Around, driven

#: The mark that torch.profiler's own schedule sets around a step.
STEP_MARK = "ProfilerStep#0"
#: Looks at one step's kernels.
_SESSIONS = 3
#: What a pair takes: the profiled step, the two after it, and reading its trace.
_STEPS_OF_PAIR, _MOST_PAIRS = 4, 5
#: Pairs beyond those asked for, where something disturbs them.
_MOST_MORE = 4
#: In one piece, before a profiled step: more than the tensors of most layers take.
_ROOM_BYTES = 2**28
#: Of a step that takes longer one pair must do.
_LONG_S = 10.0
#: A larger trace is not kept; viewers load up to some hundred megabytes.
MOST_BYTES = 100_000_000


@contextmanager
def recorded(device: Device, *, shapes: bool = True) -> Iterator[profile]:
    """Run the block under torch.profiler, up to the device's last kernel; nothing is read yet.

    The host is always recorded: some versions record no kernels without it.
    """
    activities = [ProfilerActivity.CPU]
    if device.backend == "cuda":
        activities.append(ProfilerActivity.CUDA)
    else:
        # The profiler of a torch made for CUDA complains where there is none; read when it starts.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=activities, record_shapes=shapes) as profiler:
        yield profiler
        device.synchronize()


def trace_of(profiler: profile, keep: Path | None = None) -> ProfilerTrace:
    """Read what `profiler` has recorded; the trace's own file becomes `keep`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        if keep is not None:
            shutil.move(file, keep)
        return read_trace(keep or file)


def traced(step: Callable[[], object], device: Device, *, shapes: bool = True) -> ProfilerTrace:
    """Run `step` once and return its trace."""
    with recorded(device, shapes=shapes) as profiler:
        step()
    return trace_of(profiler)


#: The mark that torch's DataLoader sets around the next batch.
_LOADER_MARK = "enumerate(DataLoader)#"
_NO_LOADER = "no DataLoader of torch in the profiled steps"


@dataclass
class TimedStep:
    """One step under a tool; `device` is what its device did, or why that is not known."""

    wall_s: float
    ops: Sequence[SeenOp]
    device: DeviceTime | Unknown
    data_wait_s: float | None = None
    neighbours_s: float = 1.0  # the mean of the steps before and after it, without the tool


#: Reads a step that a tool has seen; the trace's own file becomes the path, where one is given.
Reading = Callable[[Path | None], TimedStep]


class Profiled:
    """Steps under torch.profiler.

    On CUDA an op's time is that of the kernels and copies which it launched; elsewhere ops run on
    the host, and it is their wall time there.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._on_device = device.backend == "cuda"
        time_of = "wall time of each op on the host"
        if self._on_device:
            time_of = "device time of the kernels and copies that each op launched"
        self.method = f"torch.profiler of torch {torch.__version__}: {time_of}"

    def recording(self) -> Around[tuple[float, Reading]]:
        """Run a step under the profiler, the device synchronised at both ends; read it later."""
        with recorded(self._device) as profiler:
            self._device.synchronize()
            begin = time.perf_counter()
            with record_function(STEP_MARK):
                yield
                self._device.synchronize()
            wall_s = time.perf_counter() - begin
        return wall_s, lambda keep: self._timed(trace_of(profiler, keep), wall_s)

    def _timed(self, trace: ProfilerTrace, wall_s: float) -> TimedStep:
        waits = [span for span in trace.host if span.name.startswith(_LOADER_MARK)]
        waited_s = sum(span.end_us - span.begin_us for span in waits) / 1e6 if waits else None
        if not self._on_device:
            marks = [span for span in trace.host if span.name == STEP_MARK]
            nest = Nest(_outside_loader(host_of_steps(trace, marks)), timed=True)
            why_not = Unknown("ops run on the host itself")
            return TimedStep(wall_s, [*nest.tops, *nest.beside], why_not, waited_s)
        nest, on_device = Nest(trace.host, timed=False), DeviceTime(trace.device)
        if not on_device.kernels:
            raise UserError(
                "torch.profiler recorded no kernel: CUPTI is in use or does not fit the driver; "
                "end other profilers, or update the NVIDIA driver"
            )
        on_device.give_to(nest, trace.launches)
        return TimedStep(wall_s, nest.tops, on_device, waited_s)


def _outside_loader(spans: Sequence[HostSpan]) -> list[HostSpan]:
    """Leave out what a loader's mark holds: its ops are part of the wait for the batch."""
    waits = [span for span in spans if span.loads]
    return [
        span
        for span in spans
        if not any(
            wait.begin_us <= span.begin_us < wait.end_us and span.thread == wait.thread
            for wait in waits
        )
    ]


def _why_not_kept(file: Path) -> str | None:
    """Compress the trace `file` beside itself, as it is uploaded; why it is not kept, or None."""
    file.with_name("trace.json.gz").unlink(missing_ok=True)  # of an attempt before
    packed = keep_trace(file, file.parent)
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
    sessions: list[list[str]] = []
    for _ in range(_SESSIONS if on_cuda else 1):
        with contextlib.suppress(UserError):  # an empty trace
            trace = traced(step, device, shapes=False)
            sessions.append(DeviceTime(trace.device).kernels if on_cuda else op_names(trace.host))
    names = max(sessions, key=len, default=[])
    unit: Literal["kernels", "ops"] = "kernels" if on_cuda else "ops"
    return WorkSet(unit=unit, counts=Counter(names)) if names else None


class Synchronized(Profiled):
    """An op's time is from its call to the device's end of it: launch and wait are in it.

    What overlaps in a step does not here, and torch.compile is not in effect: the mode sees every
    op, so nothing is fused.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.method = (
            "every dispatched op waited for: its time includes its launch and the wait, which "
            "overlap in a real step; torch.compile is without effect"
        )

    def recording(self) -> Around[tuple[float, Reading]]:
        """Run a step op by op."""
        self._device.synchronize()
        begin = time.perf_counter()
        with _Stopwatch(self._device) as watch:
            yield
        self._device.synchronize()
        wall_s = time.perf_counter() - begin
        why_not = Unknown("each op was waited for, so the device ran differently from a step")
        timed = TimedStep(wall_s, watch.ops(), why_not)
        return wall_s, lambda keep: timed


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
    pairs: int = 5,
    trace_file: Path | None = None,
    *,
    alone: bool = True,
) -> OpProfile:
    """Run `step` as `profiling` has it, and return the times of its ops."""
    return driven(profiling(device, work, pairs, trace_file, alone=alone), step)


def profiling(
    device: Device,
    work: Sequence[CallWork],
    pairs: int,
    trace_file: Path | None = None,
    *,
    alone: bool = True,
) -> Around[OpProfile]:
    """Run steps by turns without and with the profiler, and time the ops of the latter.

    The first step is not looked at: it starts the tool. Then `pairs` profiled steps each stand
    between two that are not. What a profiler keeps of a step lies where the process has its
    tensors: that step and the next obtain memory again, which took a fused optimizer five times as
    long. So on a CPU as much as the first ones took is obtained before each of the others, and the
    step after a profiled one is not looked at. Nothing is exported, read or counted before the last
    has ended. Where a disturbed step is followed by another try, a process that trains with others,
    not `alone`, would leave their step: there each step is taken as it comes.

    `work` are the cost model's calls of the same step (`bench.cost.estimate.op_work`). Times are of
    the device on CUDA, of the host on a CPU, and of synchronised ops on MPS; `method` says which.
    The trace of the last step is kept, compressed, as `trace.json.gz` beside `trace_file`.
    """
    recorder = (Synchronized if device.backend == "mps" else Profiled)(device)
    walls_s: list[float] = []
    readings: list[Reading] = []
    unprofiled_s: list[list[float]] = []
    resident_bytes, room_bytes = _resident_bytes(), 0
    more, tries = (_MOST_MORE, 3 if pairs > 1 else 1) if alone else (0, 1)
    while len(readings) <= pairs or (
        len(calm(walls_s[1:])) < min(pairs, 2) and len(readings) <= pairs + more
    ):
        torch.empty(room_bytes, dtype=torch.uint8).zero_()  # freed: the heap has it now
        wall_s, reading = yield from recorder.recording()
        walls_s.append(wall_s)
        readings.append(reading)
        yield
        if device.backend == "cpu" and len(readings) == 1:
            grown_bytes = max(_resident_bytes() - resident_bytes, _ROOM_BYTES)
            room_bytes = min(grown_bytes, psutil.virtual_memory().available // 4)
        shortest_s = min(chain(*unprofiled_s), default=math.inf)
        unprofiled_s.append((yield from _unprofiled(device, shortest_s, tries)))
    del readings[0]
    steps = [read(None) for read in readings[:-1]] + [readings[-1](trace_file)]
    for step, before_s, after_s in zip(steps, unprofiled_s, unprofiled_s[1:], strict=False):
        step.neighbours_s = (before_s[-1] + after_s[0]) / 2
    profiled = _profile(recorder.method, steps, work)
    if trace_file is not None and trace_file.exists() and (why := _why_not_kept(trace_file)):
        return profiled.replaced({"trace": why})
    return profiled


def pairs_within(left_s: float, step_s: float) -> int:
    """Return how many pairs `profiling` may take of `left_s`: two to five, one of a long step."""
    if step_s > _LONG_S:
        return 1
    return min(max(int(left_s / (_STEPS_OF_PAIR * step_s)), 2), _MOST_PAIRS)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _unprofiled(device: Device, shortest_s: float, most: int) -> Around[list[float]]:
    """Run up to `most` steps without the profiler until nothing disturbs one.

    Return their wall times, the device at rest at both ends of each.
    """
    walls_s: list[float] = []
    while not walls_s or (len(walls_s) < most and walls_s[-1] not in calm([shortest_s, *walls_s])):
        device.synchronize()
        begin = time.perf_counter()
        yield
        device.synchronize()
        walls_s.append(time.perf_counter() - begin)
    return walls_s


def _profile(method: str, timed: Sequence[TimedStep], work: Sequence[CallWork]) -> OpProfile:
    """Sum up the steps, but for those that lost kernels (pytorch#192021) or were disturbed."""
    kernels = [len(step.device.kernels) if step.device else 0 for step in timed]
    most = max(kernels)
    steps = [step for step, number in zip(timed, kernels, strict=True) if number == most]
    if lost := len(timed) - len(steps):
        method += f"; {lost} of {len(timed)} steps left out, of which it lost kernels"
    by_time = sorted(steps, key=lambda step: step.wall_s)
    used = max(len(calm([step.wall_s for step in steps])), 2)
    if not most and (disturbed := by_time[used:]):
        method += f"; {len(disturbed)} of {len(timed)} steps left out, which took much longer"
        steps = [step for step in steps if step not in disturbed]
    walls_s = tuple(step.wall_s for step in steps)
    neighbours_s = tuple(step.neighbours_s for step in steps)
    whole_s = median(neighbours_s) * profiler_cost(walls_s, neighbours_s)
    # the profiler slows the host, and no kernel
    scales = [1.0 if step.device else whole_s / step.wall_s for step in steps]
    joined = [join(step.ops, CallsInOrder(work)) for step in steps]
    on_device = [(step.device, step.wall_s) for step in steps if step.device]
    waits_s = [
        step.data_wait_s * scale
        for step, scale in zip(steps, scales, strict=True)
        if step.data_wait_s is not None
    ]
    missing = {}
    if unseen := _unseen(joined[-1], work):
        missing["unseen"] = unseen
    last = steps[-1].device
    facts: dict[str, Any] = dict.fromkeys(("device_busy_share", "launch_gap_s", "copies"), last)
    if last:
        copies = last.copies()
        facts = {
            "device_busy_share": median(device.busy_s / wall_s for device, wall_s in on_device),
            "launch_gap_s": median(device.gap_s for device, _ in on_device),
            "copies": Unknown("the trace lacks the bytes of copies") if copies is None else copies,
        }
    facts["data_wait_s"] = median(waits_s) if waits_s else Unknown(_NO_LOADER)
    return OpProfile(
        method=method,
        iterations=len(steps),
        step_time_s=median(map(mul, walls_s, scales)),
        ops=op_times(joined, scales),
        steps_s=walls_s,
        neighbours_s=neighbours_s,
        missing=missing,
        **facts,
    )


def _unseen(ops: Iterable[SeenOp], work: Sequence[CallWork]) -> str | None:
    """Say which calls of the cost model no timed op was joined with."""
    calls = (op.work for op in ops)
    seen = Counter((call.op, call.phase) for call in calls if isinstance(call, CallWork))
    rest = Counter((call.op, call.phase) for call in work) - seen
    if not rest:
        return None
    named = ", ".join(f"{count} {op} ({phase})" for (op, phase), count in rest.most_common(5))
    return f"{rest.total()} of the cost model's {len(work)} calls were not seen, such as {named}"
