"""The report's tables and sentences of what is inside a step: ops and kernels, and traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.account import StepAccount
from analysis.presentation.columns import C, Row, both_sides, columns, table, tables
from analysis.presentation.table import Column, Table
from analysis.presentation.words import bytes_rate, counted, flops_rate, percent, three_digits
from analysis.profiles import check_ops, time_share
from analysis.roofs import UsedCeiling
from analysis.traces.placed import PlacedTrace, TraceComparison, compare_two, rank_waits
from bench.errors import Unknown
from bench.records import GpuCounters
from bench.records.base import Facts, ratio

if TYPE_CHECKING:
    from analysis.runs.place import PlacedProfile

#: Rows of ops and kernels for people; the CSV holds them all.
_SHOWN = 25
_COUNTED = (C.source, C.scope, C.iterations, C.ipc, C.cpi)
#: The parts of a traced step's time.
_PARTS = ("wall", "device_busy", "computation", "exposed_communication", "exposed_copies",
          "communication", "idle")  # fmt: skip
#: The title and the columns of each table by its name.
_TABLES: Mapping[str, tuple[str, Sequence[Column]]] = {
    "profiles": (
        "Profiles",
        (C.profile_no, C.explains_runs, C.configuration, C.outcome, C.profiled_step_ms,
         C.ops_time_share, C.device_busy_share, C.communication, C.launch_gap_ms,
         C.ops_matched_share, C.counted_dram_gb, C.executed_gflop, C.verdict),
    ),
    "copies": (
        "Copies in one step",
        (C.profile, C.direction, C.calls, C.megabytes, C.time_ms, C.gb_per_s),
    ),
    "cpu-counters": (
        "Processor counters",
        (C.profile, *_COUNTED, C.cache_miss_share, C.branch_miss_share, C.executed_gflop_per_step,
         C.least_running_share),
    ),
    "trace-steps": (
        "Steps of traces, in ms",
        (C.trace_of, C.step, C.wall_ms, C.device_busy_ms, C.computation_ms,
         C.exposed_communication_ms, C.exposed_copies_ms, C.communication_ms, C.idle_ms,
         C.idles_for),
    ),
    "trace-accounts": (
        "Where the time of a trace's mean step goes: parts that add up to it",
        (C.trace, C.part, C.time_ms, C.share_of_step, C.of_its_roof),
    ),
    "trace-idle": (
        "Idle time of traced steps by cause, mean of the steps",
        (C.trace, C.cause, C.time_ms, C.share_of_step, C.call, C.op),
    ),
}  # fmt: skip
_OPS = (C.number, C.op_label, C.phase, C.calls, C.time_ms, C.time_share, C.gflop,
        C.elementwise_gflop, C.attained_gflops, C.intensity, C.eager_gb_per_s,
        C.remark)  # fmt: skip
_KERNELS = (C.number, C.kernel, C.launches, C.duration_ms, C.time_share, C.executed_gflop,
            C.tensor_gflop, C.executed_gflops, C.intensity_l1, C.intensity_l2, C.intensity_dram,
            C.dram_gb_per_s, C.name)  # fmt: skip
_TRACE_OPS = (C.number, C.op_label, C.phase, C.shapes, C.calls, C.time_ms, C.exclusive_ms,
              C.time_share, C.gflop, C.elementwise_gflop, C.eager_gb, C.fused_gb,
              C.attained_gflops, C.intensity, C.remark)  # fmt: skip


def profile_tables(profiles: Sequence[PlacedProfile]) -> dict[str, Table]:
    """Return the tables of all profiles by their names."""
    rows = {
        "profiles": [_profile_row(profile) for profile in profiles],
        "copies": [
            {
                "profile": profile.number,
                "direction": copies.direction,
                "calls": copies.calls,
                "megabytes": copies.bytes / 1e6,
                "time_ms": copies.time_s * 1e3,
                "gb_per_s": _scaled(ratio(copies.bytes, copies.time_s), 1e-9),
            }
            for profile in profiles
            for copies in (profile.record.ops and profile.record.ops.copies) or ()
        ],
        "cpu-counters": [
            {
                **profile.metrics,
                **{name: getattr(found, name) for column in _COUNTED for name in column.keys},
                "profile": profile.number,
                "executed_gflop_per_step": ratio(_scaled(found.flops, 1e-9), found.iterations),
                "least_running_share": min(found.running_share.values(), default=None),
            }
            for profile in profiles
            if (found := profile.record.cpu_counters) is not None
        ],
    }
    return tables(_TABLES, rows)


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


def tables_of(step: PlacedProfile | PlacedTrace, name: str) -> list[Table]:
    """Return the ops of each and a profile's kernels, longest first; `name` is of their files."""
    if isinstance(step, PlacedTrace):
        return [trace_ops_table(step, f"ops-{name}")]
    of = f"of profile {step.number}, {step.label}"
    ops, kernels = ([place.row for place in places or ()] for places in (step.ops, step.kernels))
    return [
        table(f"ops-{name}", f"Ops {of}", ops, _OPS, shown=_SHOWN),
        table(f"kernels-{name}", f"Kernels {of}", kernels, _KERNELS, shown=_SHOWN),
    ]


# Accounts and traces


def account_rows(account: StepAccount) -> list[Row]:
    """Return a row per part of an account, by the keys of columns."""
    return [
        {"name": row["name"], "time_ms": 1e3 * row["seconds"], "share_of_step": row["share"],
         "of_its_roof": row["of_its_roof"], "low_ms": row["low_s"] and 1e3 * row["low_s"],
         "high_ms": row["high_s"] and 1e3 * row["high_s"]}
        for row in account.rows()
    ]  # fmt: skip


def trace_tables(traces: Sequence[PlacedTrace]) -> dict[str, Table]:
    """Return the tables of all traces by their names: steps, idle time, and what two differ in."""
    found = {
        "trace-steps": [
            {
                "trace": trace.number,
                "source_file": trace.record.source_file,
                "step": step.name,
                **{f"{part}_ms": _scaled(getattr(step, f"{part}_s"), 1e3) for part in _PARTS},
                "idles_for": next(iter(step.idle_s_by_cause), None),
            }
            for trace in traces
            for step in trace.record.steps
        ],
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
    if ranks := rank_table(traces):
        named["trace-ranks"] = ranks
    compared = compare_two([trace.record for trace in traces])
    return {**named, "trace-comparison": comparison_table(compared)} if compared else named


def _mean_idle(trace: PlacedTrace) -> Iterator[Row]:
    """Idle time of one cause, call and op, added up over the steps; the longest first."""
    sums_s: defaultdict[tuple[str, str | None, str | None], float] = defaultdict(float)
    steps = trace.record.known_steps
    for step in steps:
        for idle in step.idle:
            sums_s[idle.cause, idle.call, idle.op] += idle.time_s
    for (cause, call, op), sum_s in sorted(sums_s.items(), key=lambda item: -item[1]):
        time_s = sum_s / len(steps)
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


def rank_table(traces: Sequence[PlacedTrace]) -> Table | Unknown | None:
    """A rank's mean step by what it spends it with, and who makes the others wait."""
    if not (waits := rank_waits(traces)):
        return waits
    rows, slow = waits
    title = "fewer than 24 steps, or 0.6 s, do not tell who makes the others wait"
    chosen = (C.rank, C.source_file, C.step_ms, C.loader_ms, C.compute_ms, C.host_ms,
              C.exchange_wait_ms, C.arrives_last_share)  # fmt: skip
    return table("trace-ranks", slow.sentence if slow else title, rows, chosen)


def comparison_table(comparison: TraceComparison) -> Table:
    """What each op that changed adds to a step of the second trace over the first's."""
    rows = []
    for op in comparison.changed:
        row = {name: getattr(op, name) for name in ("label", "op", "phase", "change")}
        for prefix, calls, time_s in zip("ab", op.calls, op.time_s, strict=True):
            row |= {f"{prefix}_calls": calls, f"{prefix}_time_ms": _scaled(time_s, 1e3)}
        rows.append(row | {"shapes": op.shapes or None, "difference_ms": 1e3 * op.difference_s})
    shown = (
        *columns((C.op_label, C.phase, C.shapes, C.change)),
        *both_sides((C.calls, C.time_ms), "sample", ("a_", "b_"), ("A", "B")),
        *columns((C.difference_ms,)),
    )
    return Table("trace-comparison", comparison.summary, rows, shown, _SHOWN)


# The sentences beside them

#: Ops that a sentence names.
_MOST_NAMED = 5


def _ended(sentences: Iterable[str]) -> list[str]:
    return [f"{words[:1].upper()}{words[1:].removesuffix('.')}." for words in sentences]


def step_sentences(step: PlacedProfile | PlacedTrace) -> list[str]:
    """Return what a profile or a trace saw, the roof above it, what it did not see, and why."""
    return _ended(_of_trace(step) if isinstance(step, PlacedTrace) else _of_profile(step))


def opening(profiles: Sequence[PlacedProfile], traces: Sequence[PlacedTrace]) -> list[str]:
    """Return what a report without runs opens with: the bound of the first trace's steps."""
    said = []
    if traces:
        record = traces[0].record
        said += [f"{traces[0].label} is bound by {record.bound}", *record.advice]
        compared = compare_two([trace.record for trace in traces])
        if isinstance(compared, Unknown):
            said.append(f"the traces are not compared: {compared.reason}")
    if profiles:
        said.append("No timed run is here: a profile shows a step's time, and no throughput")
    return _ended(said)


def _missing(facts: Facts, names: Iterable[str] = ()) -> Iterator[str]:
    """Why facts are not known: of all, or of `names`."""
    for name, why in facts.missing.items():
        if not names or name in names:
            yield f"{name.replace('_', ' ')}: {why}"


def _of_profile(profile: PlacedProfile) -> Iterator[str]:
    record = profile.record
    runs = ", ".join(f"{run.number}" for run in profile.runs)
    yield f"Explains run {runs}" if runs else "Explains no run of this report"
    if record.outcome != "ok":
        yield f"Outcome {record.outcome}: {record.reason}"
    yield from _missing(record, ("ops", "counters", "cpu_counters"))
    if (ops := record.ops) is not None:
        yield f"Times of ops by {ops.method}, over {ops.iterations} steps"
        yield from _missing(ops, ("device_busy_share", "copies", "unseen"))
        if profile.ops is not None and (outside := profile.ops.unknown):
            largest = ", ".join(f"{op.name} {percent(op.share)}" for op in outside[:_MOST_NAMED])
            share = percent(time_share(outside))
            yield f"Not in the cost model, {share} of the ops' time, the largest first: {largest}"
    if record.counters is not None:
        yield from _of_counters(record.counters, profile.used)
    if record.cpu_counters is not None:
        yield from _missing(record.cpu_counters)
    yield from (finding.sentence for finding in profile.findings if finding.level == "note")


def _of_counters(counters: GpuCounters, used: UsedCeiling | None) -> Iterator[str]:
    chip = f" on {counters.chip}" if counters.chip else ""
    names = counted(len(counters.per_kernel), "kernel name")
    yield f"Counters by {counters.source}{chip}: {counters.kernels} launches, {names}"
    yield from _missing(counters)
    caches = {cache.level: cache for cache in used.cache_roofs} if used else {}
    for level in sorted({"L1", "L2", *caches}) if used else ():
        cache = caches.get(level)
        if cache is not None and cache.peak_bytes_per_s is not None:
            yield f"{level}: {bytes_rate(cache.peak_bytes_per_s)} by {cache.source}"
        else:
            why = cache.missing["peak_bytes_per_s"] if cache else "its bandwidth was not measured"
            yield f"No slope for {level}: {why}"


def _of_trace(trace: PlacedTrace) -> Iterator[str]:
    record = trace.record
    yield from (f"Bound: {record.bound}", *record.findings, *record.advice)
    if isinstance(trace.ceiling, Unknown):
        yield f"No roof: {trace.ceiling.reason}"
    else:
        ceiling, roof = trace.ceiling.ceiling, trace.ceiling.roof
        note = trace.ceiling.instead_of_measured
        yield (
            f"Roof in {ceiling.math_mode}: {flops_rate(roof.peak_flops_per_s)} and "
            f"{bytes_rate(roof.peak_bytes_per_s)}, {ceiling.kind} ({ceiling.source})"
            f"{f'; {note}' if note else ''}"
        )
        for finding in check_ops(trace.ops, roof):
            yield f"{finding.level}: {finding.sentence}"
    if not any(op.kernels for op in record.ops) and record.known_steps[0].device_busy_s is None:
        yield "No device ran anything in the trace: times of ops are their own on the host"
    if (counters := record.counters) is not None:
        sums = {"FLOP executed": counters.flops, "B of DRAM": counters.dram_bytes}
        words = [f"{three_digits(n / 1e9)} G{unit}" for unit, n in sums.items() if n is not None]
        yield f"Counters of {counted(counters.kernels, 'kernel')}: {', '.join(words) or 'no sum'}"
        yield from _missing(counters)
