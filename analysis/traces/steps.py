"""Cuts a trace into steps: by torch's marks, by marks of a given name, or not at all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from bench.errors import UserError
from bench.profilers.traces import DeviceSpan, HostSpan, Trace

MARK = "ProfilerStep"
WHOLE = "whole trace"


@dataclass
class StepSpans:
    """What belongs to one step: host spans that began in it, and what the device ran for them."""

    name: str
    begin_us: float
    end_us: float
    host: list[HostSpan] = field(default_factory=list)
    device: list[DeviceSpan] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        """The mark's duration; of a whole trace, that of the device's work if it did any."""
        return (self.end_us - self.begin_us) / 1e6


def cut_steps(trace: Trace, mark: str | None = None) -> list[StepSpans]:
    """Return the steps of `trace`, in order; what lies outside all of them is left out.

    A step is an interval of the host whose name begins with `mark`. What the device ran belongs to
    the step in which it was launched. Where the launch is not in the trace, it belongs to the step
    of what the same stream ran before; before the first launch, to none: it was launched before the
    trace began. In a stream without launches it belongs to the step in which it began. Without
    `mark` and without torch's marks (`ProfilerStep#5`), the trace is one step.
    Raises `UserError` where there is no mark of that name.
    """
    if mark == WHOLE:
        return [_whole(trace)]
    marks = [s for s in trace.host if s.kind != "call" and s.name.startswith(mark or MARK)]
    if not marks:
        if mark is not None:
            known = {span.name.partition("#")[0] for span in trace.host if span.kind == "mark"}
            names = ", ".join(sorted(known)[:12]) or "none"
            raise UserError(f"{trace.path}: no mark begins with {mark!r}; it has {names}")
        return [_whole(trace)]
    steps = [StepSpans(span.name, span.begin_us, span.end_us) for span in _outermost(marks)]
    _fill(steps, trace)
    return steps


def _fill(steps: Sequence[StepSpans], trace: Trace) -> None:
    """Give the steps what belongs to them."""
    begins = [step.begin_us for step in steps]

    def at(time_us: float) -> StepSpans | None:
        number = bisect_right(begins, time_us) - 1
        return steps[number] if number >= 0 and time_us < steps[number].end_us else None

    for span in trace.host:
        if (step := at(span.begin_us)) is not None:
            step.host.append(span)
    launches = [trace.launch_of(run) for run in trace.device]
    latest: dict[tuple[int | str | None, int | str | None], StepSpans | None] = {
        (run.device, run.stream): None
        for run, launch in zip(trace.device, launches, strict=True)
        if launch is not None
    }
    for run, launch in zip(trace.device, launches, strict=True):
        stream = run.device, run.stream
        if launch is not None:
            latest[stream] = at(launch.begin_us)
        step = latest[stream] if stream in latest else at(run.begin_us)
        if step is not None:
            step.device.append(run)


def _outermost(marks: Sequence[HostSpan]) -> list[HostSpan]:
    """Marks of one name may be nested; they are in the order of their beginning, longest first."""
    kept: list[HostSpan] = []
    for span in marks:
        if not kept or span.begin_us >= kept[-1].end_us:
            kept.append(span)
    return kept


def _whole(trace: Trace) -> StepSpans:
    """The trace as one step: as long as the device worked for it, or the host without a device."""
    step = StepSpans(WHOLE, -inf, inf)
    _fill([step], trace)
    timed: Sequence[HostSpan | DeviceSpan] = step.device or step.host
    step.begin_us = min((span.begin_us for span in timed), default=0.0)
    step.end_us = max((span.end_us for span in timed), default=0.0)
    return step
