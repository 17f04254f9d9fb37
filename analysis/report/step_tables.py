"""The report's tables of what is inside a step: profiles, their ops and kernels, and traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.columns import both_sides, columns, table, tables
from analysis.runs.frame import Row, account_rows
from analysis.runs.place import PlacedProfile
from analysis.table import Table
from analysis.traces.placed import PlacedTrace, TraceComparison, compare_two
from bench.records import CpuCounters, TracedStep
from bench.records.base import ratio

#: Rows of ops and kernels for people; the CSV holds them all.
_SHOWN = 25
_COUNTED = "source scope iterations ipc cpi"
#: The parts of a traced step's time.
_PARTS = ("wall", "device_busy", "computation", "exposed_communication", "exposed_copies",
          "communication", "idle")  # fmt: skip
#: The title and the columns of each table by its name.
_TABLES = {
    "profiles": (
        "Profiles",
        "profile_no explains_runs configuration outcome profiled_step_ms ops_time_share "
        "device_busy_share communication launch_gap_ms ops_matched_share counted_dram_gb "
        "executed_gflop verdict",
    ),
    "copies": ("Copies in one step", "profile direction calls megabytes time_ms gb_per_s"),
    "cpu-counters": (
        "Processor counters",
        f"profile {_COUNTED} cache_miss_share branch_miss_share executed_gflop_per_step "
        "least_running_share",
    ),
    "trace-steps": (
        "Steps of traces, in ms",
        " ".join(("trace_of step", *(f"{part}_ms" for part in _PARTS), "idles_for")),
    ),
    "trace-accounts": (
        "Where the time of a trace's mean step goes: parts that add up to it",
        "trace part time_ms share_of_step of_its_roof",
    ),
    "trace-idle": (
        "Idle time of traced steps by cause, mean of the steps",
        "trace cause time_ms share_of_step call op",
    ),
}
_OPS = (
    "number op_label phase calls time_ms time_share gflop elementwise_gflop attained_gflops "
    "intensity eager_gb_per_s remark"
)
_KERNELS = (
    "number kernel launches duration_ms time_share executed_gflop tensor_gflop executed_gflops "
    "intensity_l1 intensity_l2 intensity_dram dram_gb_per_s name"
)
_TRACE_OPS = (
    "number op_label phase shapes calls time_ms exclusive_ms time_share gflop elementwise_gflop "
    "eager_gb fused_gb attained_gflops intensity remark"
)


def profile_tables(profiles: Sequence[PlacedProfile]) -> dict[str, Table]:
    """Return the tables of all profiles by their names."""
    found = {
        "profiles": [_profile_row(one) for one in profiles],
        "copies": [
            {
                "profile": profile.number,
                "direction": one.direction,
                "calls": one.calls,
                "megabytes": one.bytes / 1e6,
                "time_ms": one.time_s * 1e3,
                "gb_per_s": _scaled(ratio(one.bytes, one.time_s), 1e-9),
            }
            for profile in profiles
            for one in (profile.record.ops and profile.record.ops.copies) or ()
        ],
        "cpu-counters": [
            _counters_row(one, counters)
            for one in profiles
            if (counters := one.record.cpu_counters) is not None
        ],
    }
    return tables(_TABLES, found)


def _profile_row(profile: PlacedProfile) -> Row:
    row = {
        **profile.metrics,
        "profile": profile.number,
        "record": profile.name,
        "explains_runs": ", ".join(f"{run.number}" for run in profile.runs) or None,
        "configuration": profile.label,
        "outcome": profile.record.outcome,
        "verdict": profile.verdict,
    }
    if (ops := profile.record.ops) is not None:
        row["profiled_step_ms"] = 1e3 * ops.step_time_s
        row["ops_time_share"] = ratio(ops.exclusive_s, ops.step_time_s)
        row["launch_gap_ms"] = _scaled(ops.launch_gap_s, 1e3)
        row["exposed_communication_ms"] = _scaled(ops.exposed_communication_s or None, 1e3)
    return row


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _counters_row(profile: PlacedProfile, one: CpuCounters) -> Row:
    return {
        **profile.metrics,
        **{name: getattr(one, name) for name in _COUNTED.split()},
        "profile": profile.number,
        "executed_gflop_per_step": ratio(_scaled(one.flops, 1e-9), one.iterations),
        "least_running_share": min(one.running_share.values(), default=None),
    }


def tables_of(one: PlacedProfile | PlacedTrace, name: str) -> list[Table]:
    """Return the ops of each and a profile's kernels, longest first; `name` is of their files."""
    if isinstance(one, PlacedTrace):
        return [trace_ops_table(one, f"ops-{name}")]
    of = f"of profile {one.number}, {one.label}"
    ops, kernels = ([place.row for place in places or ()] for places in (one.ops, one.kernels))
    return [
        table(f"ops-{name}", f"Ops {of}", ops, _OPS, shown=_SHOWN),
        table(f"kernels-{name}", f"Kernels {of}", kernels, _KERNELS, shown=_SHOWN),
    ]


# Traces


def trace_tables(traces: Sequence[PlacedTrace]) -> dict[str, Table]:
    """Return the tables of all traces by their names: steps, idle time, and what two differ in."""
    found = {
        "trace-steps": [_step_row(trace, step) for trace in traces for step in trace.record.steps],
        "trace-accounts": [
            {"trace": trace.number, **row}
            for trace in traces
            for row in account_rows(trace.account)
        ],
        "trace-idle": [row for trace in traces for row in _mean_idle(trace)],
    }
    named = tables(_TABLES, found)
    for name in ("trace-accounts", "trace-idle"):
        named[name] = replace(named[name], shown=_SHOWN)
    compared = compare_two([trace.record for trace in traces])
    return {**named, "trace-comparison": comparison_table(compared)} if compared else named


def _step_row(trace: PlacedTrace, step: TracedStep) -> Row:
    return {
        "trace": trace.number,
        "source_file": trace.record.source_file,
        "step": step.name,
        **{f"{part}_ms": _scaled(getattr(step, f"{part}_s"), 1e3) for part in _PARTS},
        "idles_for": next(iter(step.idle_s_by_cause), None),
    }


def _mean_idle(trace: PlacedTrace) -> Iterator[Row]:
    """Idle time of one cause, call and op, added up over the steps; the longest first."""
    sums_s: defaultdict[tuple[str, str | None, str | None], float] = defaultdict(float)
    for step in trace.record.steps:
        for idle in step.idle:
            sums_s[idle.cause, idle.call, idle.op] += idle.time_s
    for (cause, call, op), sum_s in sorted(sums_s.items(), key=lambda one: -one[1]):
        time_s = sum_s / len(trace.record.steps)
        share = ratio(time_s, trace.record.step_time_s)
        yield {"trace": trace.number, "cause": cause, "call": call, "op": op,
               "time_ms": 1e3 * time_s, "share_of_step": share}  # fmt: skip


def trace_ops_table(trace: PlacedTrace, name: str) -> Table:
    """Time and work of a trace's ops by shape, per step; `name` is the table's."""
    rows = [
        {
            **op.row,
            "phase": op.time.phase,
            "shapes": op.shapes or None,
            "exclusive_ms": _scaled(op.time.exclusive_s, 1e3),
            "eager_gb": _scaled(op.time.eager_bytes, 1e-9),
            "fused_gb": _scaled(op.time.fused_bytes, 1e-9),
        }
        for op in trace.ops
    ]
    title = f"Ops of trace {trace.number}, {trace.label}, per step"
    return table(name, title, rows, _TRACE_OPS, shown=_SHOWN)


def comparison_table(comparison: TraceComparison) -> Table:
    """What each op that changed adds to a step of the second trace over the first's."""
    rows = []
    for one in comparison.changed:
        row = {name: getattr(one, name) for name in ("label", "op", "phase", "change")}
        for prefix, calls, time_s in zip("ab", one.calls, one.time_s, strict=True):
            row |= {f"{prefix}_calls": calls, f"{prefix}_time_ms": _scaled(time_s, 1e3)}
        rows.append(row | {"shapes": one.shapes or None, "difference_ms": 1e3 * one.difference_s})
    shown = (
        *columns("op_label phase shapes change"),
        *both_sides("calls time_ms", "sample", ("a_", "b_"), ("A", "B")),
        *columns("difference_ms"),
    )
    return Table("trace-comparison", comparison.summary, rows, shown, _SHOWN)
