"""The report's tables of traces: their steps, why the device idles, their ops by shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from analysis.profiles.op_places import OpPlace
from analysis.report.tables.profile_tables import eager_to_fused, remark_of
from analysis.runs.quantities import percent, signed
from analysis.table import (
    Column,
    Table,
    make_table,
    number,
    scaled,
    text,
    whole,
)
from analysis.traces.compare import OpChange, TraceComparison
from analysis.traces.placed import PlacedTrace
from bench.records import IdleTime, TracedOp, TracedStep, TraceRecord
from bench.records.base import ratio

#: Rows of ops for people; the CSV holds them all.
_SHOWN = 25


class _Step(NamedTuple):
    trace: PlacedTrace
    step: TracedStep


def steps_table(traces: Sequence[PlacedTrace]) -> Table:
    """Where the time of each step of each trace goes."""

    def of_step(name: str, heading: str) -> Column[_Step]:
        def value(row: _Step) -> float | None:
            return scaled(getattr(row.step, f"{name}_s"), 1e3)

        return number(f"{name}_ms", heading, value)

    return make_table(
        "trace-steps",
        "Steps of traces, in ms",
        [_Step(trace, step) for trace in traces for step in trace.record.steps],
        whole("trace source_file", "trace",
              lambda row: (row.trace.number, row.trace.record.source_file)),
        text("step", "step", lambda row: row.step.name),
        of_step("wall", "wall"),
        of_step("device_busy", "device busy"),
        of_step("computation", "computation"),
        of_step("exposed_communication", "exposed communication"),
        of_step("exposed_copies", "exposed copies"),
        of_step("communication", "communication, hidden too"),
        of_step("idle", "idle"),
        text("idles_for", "idle most for",
             lambda row: next(iter(row.step.idle_s_by_cause), None)),
        sparse=True,
    )  # fmt: skip


class _Idle(NamedTuple):
    trace: PlacedTrace
    idle: IdleTime  # mean of the steps


def idle_table(traces: Sequence[PlacedTrace]) -> Table:
    """For what the device idles in a step of each trace, and in which call and op."""
    rows = [_Idle(trace, idle) for trace in traces for idle in _mean_idle(trace.record)]
    return make_table(
        "trace-idle",
        "Idle time of traced steps by cause, mean of the steps",
        rows,
        whole("trace", "trace", lambda row: row.trace.number),
        text("cause", "cause", lambda row: row.idle.cause),
        number("time_ms", "ms a step", lambda row: 1e3 * row.idle.time_s),
        number("share_of_step", "of a step",
               lambda row: ratio(row.idle.time_s, row.trace.record.step_time_s), percent),
        text("call", "call", lambda row: row.idle.call),
        text("op", "in", lambda row: row.idle.op, wraps_em=14),
        shown=_SHOWN,
        sparse=True,
    )  # fmt: skip


def _mean_idle(record: TraceRecord) -> list[IdleTime]:
    """Idle time of one cause, call and op, added up over the steps; the longest first."""
    sums_s: defaultdict[tuple[str, str | None, str | None], float] = defaultdict(float)
    for step in record.steps:
        for idle in step.idle:
            sums_s[idle.cause, idle.call, idle.op] += idle.time_s
    return [
        IdleTime(cause=cause, time_s=sum_s / len(record.steps), call=call, op=op)
        for (cause, call, op), sum_s in sorted(sums_s.items(), key=lambda one: -one[1])
    ]


class _Op(NamedTuple):
    op: TracedOp
    place: OpPlace


def trace_ops_table(trace: PlacedTrace, name: str) -> Table:
    """Time and work of a trace's ops by shape, per step; `name` is the table's."""

    def work(key: str, heading: str, value: Callable[[TracedOp], float | None]) -> Column[_Op]:
        return number(key, heading, lambda row: scaled(value(row.op), 1e-9))

    return make_table(
        name,
        f"Ops of trace {trace.number}, {trace.label}, per step",
        [_Op(op, place) for op, place in trace.placed_ops],
        whole("number", "no.", lambda row: row.place.rank),
        text("label op", "op", lambda row: (row.op.label, row.op.op)),
        text("phase", "phase", lambda row: row.op.phase),
        text("shapes", "shapes", lambda row: row.op.shapes or None, wraps_em=14),
        number("calls", "calls", lambda row: row.op.calls),
        number("time_ms", "ms of its kernels", lambda row: 1e3 * row.op.time_s),
        number("exclusive_ms", "ms exclusive", lambda row: 1e3 * row.op.exclusive_s),
        number("time_share", "of the ops' time", lambda row: row.place.share, percent),
        work("gflop", "GFLOP", lambda op: op.flops),
        work("elementwise_gflop", "elementwise GFLOP", lambda op: op.elementwise_flops),
        work("eager_gb", "eager GB", lambda op: op.eager_bytes),
        work("fused_gb", "fused GB", lambda op: op.fused_bytes),
        number("attained_gflop_per_s", "GFLOP/s",
               lambda row: scaled(row.place.flops_per_s, 1e-9)),
        number("intensity_eager_flop_per_byte intensity_fused_flop_per_byte", "FLOP/byte",
               lambda row: (row.place.intensity_min, row.place.intensity_max)
               if row.place.kind else (None, None), eager_to_fused),
        text("remark", "remark", lambda row: remark_of(row.place), wraps_em=14),
        shown=_SHOWN,
        sparse=True,
    )  # fmt: skip


def comparison_table(comparison: TraceComparison) -> Table:
    """What each op that changed adds to a step of the second trace over the first's."""

    def of_side(side: int) -> list[Column[OpChange]]:
        letter = "AB"[side]
        return [
            number(f"{letter.lower()}_calls", f"{letter} calls", lambda row: row.calls[side]),
            number(f"{letter.lower()}_time_ms", f"{letter} ms",
                   lambda row: scaled(row.time_s[side], 1e3)),
        ]  # fmt: skip

    return make_table(
        "trace-comparison",
        comparison.summary,
        comparison.changed,
        text("label op", "op", lambda row: (row.label, row.op)),
        text("phase", "phase", lambda row: row.phase),
        text("shapes", "shapes", lambda row: row.shapes or None, wraps_em=14),
        text("change", "change", lambda row: row.change),
        *of_side(0),
        *of_side(1),
        number("difference_ms", "ms added to the step",
               lambda row: 1e3 * row.difference_s, signed),
        shown=_SHOWN,
        sparse=True,
    )  # fmt: skip
