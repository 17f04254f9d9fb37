"""Cuts a trace into steps, and says where their seconds go.

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
kernel, copy or fill. Windows do not overlap. Idle is what no kernel, copy or fill of the trace
covers in the window, so that no idle second is of two steps. Over all steps, windows are idle time
plus what ran in them.

Where several devices ran kernels, every figure is the mean over them.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from bench.errors import UserError
from bench.profilers.traces.idle import (
    STEP_MARK,
    IdleCause,
    idle_causes,
)
from bench.profilers.traces.intervals import Intervals, by_kind, span_times
from bench.profilers.traces.nest import host_of_steps, is_backward, several_ranks
from bench.profilers.traces.spans import UNNAMED, DeviceSpan, HostSpan, ProfilerTrace
from bench.records import IdleTime, TracedStep

WHOLE = "whole trace"
NO_DEVICE = "the trace holds no kernel, copy or fill of a device"
#: What each tool must be told, to record more: a device, types of inputs, Python's stack.
HINTS = {
    "torch": {
        "device": "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (or XPU)",
        "types": "no convolution or product with the types of its inputs: record_shapes=True",
        "stack": "with_stack=True in the profiler",
    },
    "nsys": {
        "device": "record with nsys profile --trace=cuda,nvtx",
        "types": "Nsight Systems records no types of inputs, PyTorch's profiler does",
        "stack": "nsys profile --python-sampling=true",
    },
}
LOST = "calls whose kernel, copy or fill the trace lacks"


@dataclass
class StepSpans:
    """Host spans that began in one step, and what the device ran for them."""

    name: str
    begin_us: float
    end_us: float
    host: list[HostSpan] = field(default_factory=list)
    device: list[DeviceSpan] = field(default_factory=list)
    lost: int = 0  # launches without their kernel: the device's times are not known

    @property
    def wall_s(self) -> float:
        """The mark's duration; of a whole trace, that of the device's work if it did any."""
        return (self.end_us - self.begin_us) / 1e6


def cut_steps(trace: ProfilerTrace, mark: str | None = None) -> list[StepSpans]:
    """Return the steps of `trace`, in order; what lies outside all of them is left out.

    A step is an interval of the host whose name begins with `mark`. What the device ran belongs to
    the step in which it was launched. Where the launch is not in the trace, it belongs to the step
    of what the same stream ran before; before the first launch, to none: it was launched before the
    trace began. In a stream without launches it belongs to the step in which it began. Without
    `mark` and without torch's marks (`ProfilerStep#5`), the trace is one step. Where no device ran
    anything, the host's spans are those of the steps' own thread (`host_of_steps`). Torch's first
    and last marks are no steps where the loop had not begun, or had ended (`_training`).
    Raises `UserError` where there is no mark of that name, and for several ranks on one device: of
    merged traces whose devices have one number.
    """
    steps: list[StepSpans] = []
    marks = [] if mark == WHOLE else marks_of(trace.host, mark or STEP_MARK)
    if not trace.device:
        trace = replace(trace, host=host_of_steps(trace, marks))
        marks = marks_of(trace.host, mark or STEP_MARK) if marks else []
    ranks = {span.thread[0] for span in marks} if trace.tool == "torch" else ()
    if trace.device and len(ranks) > len(trace.computing):
        raise UserError(several_ranks(trace, len(ranks)))
    # Marks of one name may be nested; they are in the order of their beginning, longest first.
    for span in marks:
        if not steps or span.begin_us >= steps[-1].end_us:
            steps.append(StepSpans(span.name, span.begin_us, span.end_us))
    if steps:
        _fill(steps, trace)
        return _training(steps) if steps[0].name.startswith(STEP_MARK) else steps
    if mark not in (None, WHOLE):
        marks_there = {span.name.partition("#")[0] for span in trace.host if span.kind == "mark"}
        names = ", ".join(sorted(marks_there)[:12]) or "none"
        raise UserError(f"{trace.path}: no mark begins with {mark!r}; it has {names}")
    whole = StepSpans(WHOLE, -inf, inf)
    _fill([whole], trace)
    timed: Sequence[HostSpan | DeviceSpan] = whole.device or whole.host
    whole.begin_us = min((span.begin_us for span in timed), default=0.0)
    whole.end_us = max((span.end_us for span in timed), default=0.0)
    return [whole]


def marks_of(host: Sequence[HostSpan], name: str) -> list[HostSpan]:
    """Return the marks and ops whose names begin with `name`."""
    return [span for span in host if span.kind != "call" and span.name.startswith(name)]


def _training(steps: list[StepSpans]) -> list[StepSpans]:
    """The steps without first and last marks that hold less than a step, such as an evaluation.

    Where no step has a backward pass, only those without any work are less, if few are.
    """
    on_device = any(step.device for step in steps)
    work = [_work(step, on_device) for step in steps]
    first = next((number for number, level in enumerate(work) if level), 0)
    if work[first] == 1 and 2 * len(work[first + 1 :]) == sum(work[first + 1 :]) > 2:
        first += not steps[first].device
    least = work[first]
    last = max(number for number, level in enumerate(work) if level >= least)
    if least < 2 and 2 * sum(map(bool, work)) <= len(work):
        return steps
    return steps[first : last + 1]


def _work(step: StepSpans, on_device: bool) -> int:
    """2 for a step that trains, 1 for one in which work began, on the device if any is, else 0."""
    if any(is_backward(span) or "GraphLaunch" in span.name for span in step.host):
        return 2
    if on_device:
        return int(bool(step.device) or step.lost > 0)
    calls = (span.name for span in step.host if span.kind != "mark")
    return int(any("Synchronize" not in name for name in calls))


def _fill_with_parts(steps: Sequence[StepSpans], collective: HostSpan) -> None:
    """Give each step what of the collective is in it: it may last into the next one."""
    for step in steps:
        begin_us = max(collective.begin_us, step.begin_us)
        end_us = min(collective.end_us, step.end_us)
        if begin_us < end_us:
            part = msgspec.structs.replace(collective, begin_us=begin_us, end_us=end_us)
            step.host.append(part)


def _fill(steps: Sequence[StepSpans], trace: ProfilerTrace) -> None:
    begins = [step.begin_us for step in steps]

    def at(time_us: float) -> StepSpans | None:
        number = bisect_right(begins, time_us) - 1
        return steps[number] if number >= 0 and time_us < steps[number].end_us else None

    for span in trace.host:
        if span.communicates:
            _fill_with_parts(steps, span)
        elif (step := at(span.begin_us)) is not None:
            step.host.append(span)
            if span.correlation in trace.lost:
                step.lost += trace.launch_of(span) is span
    launches = [(run, trace.launch_of(run)) for run in trace.device]
    latest: dict[tuple[int | str | None, int | str | None], StepSpans | None] = {
        (run.device, run.stream): None for run, launch in launches if launch is not None
    }
    for run, launch in launches:
        stream = run.device, run.stream
        if launch is not None:
            latest[stream] = at(launch.begin_us)
        step = latest[stream] if stream in latest else at(run.begin_us)
        if step is not None:
            step.device.append(run)


def timeline(trace: ProfilerTrace, steps: Sequence[StepSpans]) -> list[TracedStep]:
    """Return the times of `steps`, which are of `trace` and in the order of their beginning."""
    devices = trace.computing
    if not devices or not steps:
        return [_not_known(step) for step in steps]
    windows = device_windows(trace, steps)
    threads: defaultdict[Any, list[HostSpan]] = defaultdict(list)
    for span in trace.host:
        threads[span.thread].append(span)
    marks = {step.name for step in steps}
    busy_us: list[defaultdict[str, float]] = [defaultdict(float) for _ in steps]
    idle_us: list[defaultdict[IdleCause, float]] = [defaultdict(float) for _ in steps]
    for device in devices:
        runs = [run for run in trace.device if run.device == device]
        _, computes, _, _, works = by_kind(runs)
        causes = idle_causes(runs, [*map(trace.launch_of, runs)], windows, threads, marks)
        for step, parts_us, causes_us, more_us in zip(steps, busy_us, idle_us, causes, strict=True):
            busy, computation, communication, copies, _ = by_kind(
                [span for span in step.device if span.device == device]
            )
            parts_us["device_busy_s"] += busy.length
            parts_us["computation_s"] += computation.length
            parts_us["exposed_communication_s"] += communication.outside(computes)
            parts_us["exposed_copies_s"] += copies.outside(works)
            parts_us["communication_s"] += communication.length
            for cause, time_us in more_us.items():
                causes_us[cause] += time_us
    per_s = 1e6 * len(devices)
    times: list[TracedStep] = []
    for step, parts_us, causes_us in zip(steps, busy_us, idle_us, strict=True):
        if step.lost:
            times.append(_not_known(step))
            continue
        idle = tuple(
            IdleTime(cause=cause, time_s=time_us / per_s, call=call, op=op)
            for (cause, call, op), time_us in sorted(causes_us.items(), key=lambda item: -item[1])
        )
        times_s = {name: time_us / per_s for name, time_us in parts_us.items()}
        times_s |= {"wall_s": step.wall_s, "idle_s": sum(part.time_s for part in idle)}
        times.append(TracedStep.of("not in the trace", name=step.name, **times_s, idle=idle))
    return times


def _not_known(step: StepSpans) -> TracedStep:
    why = f"{LOST}: {step.lost}" if step.lost else NO_DEVICE
    return TracedStep.of(why, name=step.name, wall_s=step.wall_s, idle=())


class RankStep(NamedTuple):
    """One step of a rank: what it takes, its wait for the loader, and when it computes.

    `collectives` are its kernels that communicate, or its host's collectives, as (name and shapes,
    begin, end) in microseconds on the trace's clock, by name: the order is the same on every rank.
    """

    step_s: float
    loader_s: float
    computing: Intervals
    collectives: Sequence[tuple[str, float, float]]


def rank_step(step: StepSpans, traced: TracedStep) -> RankStep:
    """Return what `step` shows of its rank; on the host it computes where any op runs."""
    runs: Sequence[HostSpan | DeviceSpan] = step.device
    step_s, loader_s = traced.device_time_s, traced.idle_s_by_cause.get("input", 0.0)
    if step_s is not None:
        computing = by_kind(step.device)[1]
    else:
        step_s, runs = traced.wall_s, step.host
        ops = [span for span in step.host if span.kind == "op" and not span.communicates]
        loads = [span for span in step.host if span.loads]
        waits = [*loads, *(span for span in ops if span.name.endswith("::wait_tensor"))]
        loader_s = Intervals.union(*span_times(loads)).length / 1e6
        computing = Intervals.union(*span_times(ops)).without(Intervals.union(*span_times(waits)))
    collectives = [
        (span.name + ("" if isinstance(span, DeviceSpan) else f" {span.dims}"),
         span.begin_us, span.end_us)
        for span in runs
        if span.communicates and span.begin_us != step.begin_us  # what began before lasts on
    ]  # fmt: skip
    return RankStep(step_s, loader_s, computing, sorted(collectives, key=itemgetter(0)))


def why_hidden(trace: ProfilerTrace, steps: Sequence[StepSpans]) -> str | None:
    """Why times of ops are not those of the work that they launched; None where they may be."""
    if all(step.lost for step in steps):
        return f"{LOST}: {sum(step.lost for step in steps)}"
    if not trace.device and UNNAMED in (trace.left_out or ""):
        return trace.left_out
    if trace.device or not trace.devices:
        return None
    devices = trace.devices.values()
    names = " and ".join(sorted({device.name or "a device" for device in devices}))
    return f"{NO_DEVICE}, though the machine has {names}: {HINTS[trace.tool]['device']}"


def device_windows(trace: ProfilerTrace, steps: Sequence[StepSpans]) -> list[tuple[float, float]]:
    """Return the device's window of each step, in microseconds, as defined above."""
    windows: list[tuple[float, float]] = []
    first_us = min((span.begin_us for span in steps[0].device), default=-inf)
    earlier = [span.end_us for span in trace.device if span.begin_us < first_us]
    done_us = min(max(earlier, default=-inf), first_us)
    for step in steps:
        begin_us = max(step.begin_us, done_us)
        done_us = max((span.end_us for span in step.device), default=step.end_us)
        done_us = max(begin_us, step.end_us, done_us)
        windows.append((begin_us, done_us))
    return windows


def step_time_s(trace: ProfilerTrace, steps: Sequence[StepSpans]) -> float:
    """Return how long a step took: from one step's end on the device to the next, on average.

    Its begin stands for the end before it where that is not known, and in all steps where the
    device had nothing left to do in some.
    """
    if not trace.device or all(step.lost for step in steps):
        return statistics.fmean(step.wall_s for step in steps)
    windows = device_windows(trace, steps)
    known = [number for number, step in enumerate(steps) if not step.lost]
    own_us = [windows[number][1] - windows[number][0] for number in known]
    later_us = [windows[number][1] - windows[number - 1][1] for number in known if number]
    return statistics.fmean(later_us if later_us and all(own_us) else own_us) / 1e6


def loader_share(steps: Sequence[StepSpans]) -> float:
    """Return the share of a step, their median, that the host spends in a data loader's marks."""
    marks = [span_times([span for span in step.host if span.loads]) for step in steps]
    shares = [
        Intervals.union(*times_us).length / 1e6 / step.wall_s
        for step, times_us in zip(steps, marks, strict=True)
        if step.wall_s > 0
    ]
    return statistics.median(shares) if shares else 0.0
