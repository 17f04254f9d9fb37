"""Where each step's seconds go: computation, communication, copies, and idle time by cause.

What a step launched is its own, wherever it ran. Of these kernels, copies and fills:

- busy: their union;
- computation: the union of kernels that do not communicate, and of fills;
- exposed communication: communication kernels while nothing computes;
- exposed copies: copies while nothing computes or communicates.

What hides communication and copies may be another step's. So the last three add up to the busy
time, unless steps overlap on the device: there they are less.

The host may be far ahead of the device, so a step's mark is not the time of its work. The device's
window of a step begins with the mark, but not before the previous window's end, the first one's not
before the end of what was launched earlier. It ends with the mark, but not before the step's last
kernel, copy or fill. Windows do not overlap. Idle is what no
kernel, copy or fill of the trace covers in the window, so that no idle second is of two steps. Over
all steps, windows are idle time plus what ran in them.

Where several devices ran kernels, every figure is the mean over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from analysis.traces.device_work import DeviceWork, Intervals, Kinds, span_times
from analysis.traces.host_waits import HostWaits, is_loader
from analysis.traces.idle import IdleCause, idle_causes
from analysis.traces.steps import StepSpans
from bench.profilers.traces import Trace

__all__ = ["IdleCause", "StepTime", "timeline"]

_OF_DEVICE = (
    "device_busy_s",
    "computation_s",
    "exposed_communication_s",
    "exposed_copies_s",
    "idle_s",
    "communication_s",
)
NO_LOADER = "the step has no mark of a data loader"
NO_DEVICE = "the trace holds no kernel, copy or fill of a device"


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by the definitions at the top of this module."""

    name: str
    wall_s: float  # the mark's duration
    device_busy_s: float | None = None
    computation_s: float | None = None
    exposed_communication_s: float | None = None
    exposed_copies_s: float | None = None
    idle_s: float | None = None
    communication_s: float | None = None  # hidden or not
    loader_s: float | None = None  # the host's, in marks of a loader, hidden or not
    idle: tuple[IdleCause, ...] = ()  # longest first; they add up to idle_s
    missing: dict[str, str] = field(default_factory=dict)  # the reason of each None

    @property
    def device_time_s(self) -> float | None:
        """What the step costs its device: what nothing hides, and idle time.

        Where the host runs ahead, this is the step's time, and its mark's duration is not.
        """
        if self.computation_s is None or self.exposed_communication_s is None:
            return None
        if self.exposed_copies_s is None or self.idle_s is None:
            return None
        return (
            self.computation_s + self.exposed_communication_s + self.exposed_copies_s + self.idle_s
        )


def timeline(trace: Trace, steps: Sequence[StepSpans]) -> list[StepTime]:
    """Return the times of `steps`, which are of `trace` and in the order of their beginning."""
    devices = _devices(trace)
    if not devices or not steps:
        return [_without_device(step) for step in steps]
    windows = device_windows(trace, steps)
    waits = HostWaits(trace, {step.name for step in steps})
    sums = np.zeros((len(steps), 5))
    causes: list[dict[IdleCause, float]] = [{} for _ in steps]
    for device in devices:
        work = DeviceWork.of(trace, device)
        sums += _times_on(device, work, steps)
        for found, more in zip(causes, idle_causes(work, windows, waits), strict=True):
            for cause in more:
                key = IdleCause(cause.cause, 0.0, cause.call, cause.op)
                found[key] = found.get(key, 0.0) + cause.time_s / len(devices)
    sums /= 1e6 * len(devices)
    return [
        _step_time(step, row, found)
        for step, row, found in zip(steps, sums.tolist(), causes, strict=True)
    ]


def device_windows(trace: Trace, steps: Sequence[StepSpans]) -> list[tuple[float, float]]:
    """Return the device's window of each step, in microseconds, as defined above."""
    windows: list[tuple[float, float]] = []
    first_us = min((span.begin_us for span in steps[0].device), default=-np.inf)
    earlier = [span.end_us for span in trace.device if span.begin_us < first_us]
    done_us = min(max(earlier, default=-np.inf), first_us)
    for step in steps:
        begin_us = max(step.begin_us, done_us)
        done_us = max((span.end_us for span in step.device), default=step.end_us)
        done_us = max(begin_us, step.end_us, done_us)
        windows.append((begin_us, done_us))
    return windows


def _devices(trace: Trace) -> list[int | str | None]:
    """Those that ran kernels; those with copies alone if none did."""
    ran = dict.fromkeys(span.device for span in trace.device if span.kind == "kernel")
    return list(ran or dict.fromkeys(span.device for span in trace.device))


def _times_on(
    device: int | str | None, work: DeviceWork, steps: Sequence[StepSpans]
) -> npt.NDArray[np.float64]:
    """Microseconds of each step: busy, computation, exposed ones, communication."""
    trace = Kinds.of(work.spans)
    works = trace.computation | trace.communication
    rows = []
    for step in steps:
        own = Kinds.of([span for span in step.device if span.device == device])
        rows.append(
            (
                own.all.length,
                own.computation.length,
                own.communication.outside(trace.computation),
                own.copies.outside(works),
                own.communication.length,
            )
        )
    return np.array(rows)


def _step_time(step: StepSpans, row: Sequence[float], found: dict[IdleCause, float]) -> StepTime:
    busy_s, computation_s, communication_s, copies_s, any_communication_s = row
    idle = [IdleCause(key.cause, time_s, key.call, key.op) for key, time_s in found.items()]
    idle.sort(key=lambda cause: -cause.time_s)
    loader_s, missing = _loader(step)
    return StepTime(
        name=step.name,
        wall_s=step.wall_s,
        device_busy_s=busy_s,
        computation_s=computation_s,
        exposed_communication_s=communication_s,
        exposed_copies_s=copies_s,
        idle_s=sum(cause.time_s for cause in idle),
        communication_s=any_communication_s,
        loader_s=loader_s,
        idle=tuple(idle),
        missing=missing,
    )


def _without_device(step: StepSpans) -> StepTime:
    loader_s, missing = _loader(step)
    return StepTime(
        name=step.name,
        wall_s=step.wall_s,
        loader_s=loader_s,
        missing={**dict.fromkeys(_OF_DEVICE, NO_DEVICE), **missing},
    )


def _loader(step: StepSpans) -> tuple[float | None, dict[str, str]]:
    """The host's seconds in marks of a loader, and the reason if there are none."""
    marks = [span for span in step.host if is_loader(span)]
    if not marks:
        return None, {"loader_s": NO_LOADER}
    return Intervals.union(*span_times(marks)).length / 1e6, {}
