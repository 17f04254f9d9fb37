"""The report's tables of profiles, and of what is inside one: its ops and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from analysis.profiles.kernel_places import KernelPlace, MemoryLevel
from analysis.profiles.op_places import OpPlace
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.quantities import interval, percent, three_digits
from analysis.table import (
    Column,
    Table,
    make_table,
    number,
    scaled,
    text,
    whole,
)
from bench.records import Copies, CpuCounters, OpProfile

#: Rows of ops and kernels for people; the CSV holds them all.
_SHOWN = 25


def _per(value: float | None, other: float | None) -> float | None:
    """The ratio of two numbers, if both are known and there is one."""
    return value / other if value is not None and other else None


def _metric(name: str, heading: str, show: Callable[..., str]) -> Column[PlacedProfile]:
    return number(name, heading, lambda profile: profile.metrics.get(name), show)


def profiles_table(profiles: Sequence[PlacedProfile]) -> Table:
    """One row per profile."""

    def of_ops(
        key: str,
        heading: str,
        value: Callable[[OpProfile], float | None],
        show: Callable[..., str] = three_digits,
    ) -> Column[PlacedProfile]:
        return number(key, heading, lambda one: one.record.ops and value(one.record.ops), show)

    return make_table(
        "profiles",
        "Profiles",
        profiles,
        whole("profile record", "no.", lambda profile: (profile.number, profile.name)),
        text("explains_runs", "of run",
             lambda profile: ", ".join(str(run.number) for run in profile.runs) or None),
        text("label", "configuration", lambda profile: profile.label, wraps_em=12),
        text("outcome", "outcome", lambda profile: profile.record.outcome),
        of_ops("profiled_step_ms", "profiled step ms", lambda ops: 1e3 * ops.step_time_s),
        of_ops("ops_time_share", "ops of it",
               lambda ops: _per(ops.exclusive_s, ops.step_time_s), percent),
        _metric("device_busy_share", "device busy", percent),
        of_ops("launch_gap_ms", "launch gaps ms", lambda ops: scaled(ops.launch_gap_s, 1e3)),
        _metric("ops_matched_share", "ops matched", percent),
        _metric("counted_dram_gb", "counted GB", three_digits),
        _metric("executed_gflop", "executed GFLOP", three_digits),
        text("verdict", "verdict", lambda profile: profile.verdict),
    )  # fmt: skip


class _Copied(NamedTuple):
    profile: int
    copies: Copies


def copies_table(profiles: Sequence[PlacedProfile]) -> Table:
    """Copies between host and device in one step of each profile that saw any."""
    rows = [
        _Copied(profile.number, copies)
        for profile in profiles
        if profile.record.ops
        for copies in profile.record.ops.copies or ()
    ]
    return make_table(
        "copies",
        "Copies in one step",
        rows,
        whole("profile", "profile", lambda row: row.profile),
        text("direction", "direction", lambda row: row.copies.direction),
        whole("calls", "calls", lambda row: row.copies.calls),
        number("megabytes", "MB", lambda row: row.copies.bytes / 1e6),
        number("time_ms", "ms", lambda row: row.copies.time_s * 1e3),
        number("gb_per_s", "GB/s",
               lambda row: scaled(_per(row.copies.bytes, row.copies.time_s), 1e-9)),
    )  # fmt: skip


class _Counted(NamedTuple):
    profile: PlacedProfile
    counters: CpuCounters


def cpu_counters_table(profiles: Sequence[PlacedProfile]) -> Table:
    """What the processor counted over the profiled window of each profile that has it."""
    return make_table(
        "cpu-counters",
        "Processor counters",
        [_Counted(one, found) for one in profiles if (found := one.record.cpu_counters)],
        whole("profile", "profile", lambda row: row.profile.number),
        text("source", "source", lambda row: row.counters.source),
        text("scope", "scope", lambda row: row.counters.scope),
        whole("iterations", "iterations", lambda row: row.counters.iterations),
        number("ipc", "IPC", lambda row: row.counters.ipc),
        number("cpi", "CPI", lambda row: row.counters.cpi),
        number("cache_miss_share", "cache misses",
               lambda row: row.profile.metrics.get("cache_miss_share"), percent),
        number("branch_miss_share", "branch misses",
               lambda row: row.profile.metrics.get("branch_miss_share"), percent),
        number("executed_gflop_per_step", "GFLOP a step",
               lambda row: _per(scaled(row.counters.flops, 1e-9), row.counters.iterations)),
        number("machine_dram_gb_per_step", "GB a step, whole machine",
               lambda row: _per(scaled(row.counters.dram_bytes, 1e-9), row.counters.iterations)),
        number("least_running_share", "counted in",
               lambda row: min(row.counters.running_share.values(), default=None), percent),
    )  # fmt: skip


def ops_table(profile: PlacedProfile, name: str) -> Table:
    """Time and work of a profile's ops, the longest first; `name` is the table's."""
    return make_table(
        name,
        f"Ops of profile {profile.number}, {profile.label}",
        profile.ops.ops if profile.ops else (),
        whole("number", "no.", lambda op: op.rank),
        text("label op", "op", lambda op: (op.time.label, op.time.op)),
        text("phase", "phase", lambda op: op.part),
        whole("calls", "calls", lambda op: op.time.calls),
        number("time_ms", "ms", lambda op: op.time.time_s * 1e3),
        number("time_share", "of the ops' time", lambda op: op.share, percent),
        number("gflop", "GFLOP", lambda op: scaled(op.time.flops, 1e-9)),
        number("elementwise_gflop", "elementwise GFLOP",
               lambda op: scaled(op.time.elementwise_flops, 1e-9)),
        number("attained_gflop_per_s", "GFLOP/s", lambda op: scaled(op.flops_per_s, 1e-9)),
        number("intensity_eager_flop_per_byte intensity_fused_flop_per_byte", "FLOP/byte",
               lambda op: (op.intensity_min, op.intensity_max) if op.kind else (None, None),
               eager_to_fused),
        number("eager_gb_per_s", "eager GB/s",
               lambda op: scaled(_per(op.time.eager_bytes, op.time.time_s), 1e-9)),
        text("remark", "remark", remark_of, wraps_em=14),
        shown=_SHOWN,
    )  # fmt: skip


def eager_to_fused(eager: float, fused: float | None) -> str:
    """Return an op's intensity as an interval, open where a fused op moves no byte of its own."""
    return f"{three_digits(eager)} and up" if fused is None else interval(eager, fused)


def remark_of(op: OpPlace) -> str | None:
    """Return why an op has no place under the roof, or that a cache fed it."""
    if op.why_no_place is not None:
        return op.why_no_place
    return "faster than DRAM: partly from a cache" if op.from_cache else None


def kernels_table(profile: PlacedProfile, name: str) -> Table:
    """Counters of a profile's kernels, the longest first; `name` is the table's."""

    def intensity(level: MemoryLevel) -> Column[KernelPlace]:
        key, heading = f"intensity_{level.lower()}_flop_per_byte", f"FLOP/{level} byte"
        return number(
            key, heading,
            lambda kernel: None if kernel.at_least else kernel.intensities.get(level))  # fmt: skip

    return make_table(
        name,
        f"Kernels of profile {profile.number}, {profile.label}",
        profile.kernels.kernels if profile.kernels else (),
        whole("number", "no.", lambda kernel: kernel.rank),
        text("kernel", "kernel", lambda kernel: kernel.name),
        whole("launches", "launches", lambda kernel: kernel.totals.launches),
        number("duration_ms", "ms", lambda kernel: scaled(kernel.totals.duration_s, 1e3)),
        number("time_share", "of the kernels' time", lambda kernel: kernel.share, percent),
        number("executed_gflop", "executed GFLOP",
               lambda kernel: scaled(kernel.totals.flops, 1e-9)),
        number("tensor_gflop", "on tensor cores",
               lambda kernel: scaled(kernel.totals.tensor_flops, 1e-9)),
        number("executed_gflop_per_s", "GFLOP/s",
               lambda kernel: None if kernel.at_least else scaled(kernel.flops_per_s, 1e-9)),
        intensity("L1"),
        intensity("L2"),
        intensity("DRAM"),
        number("dram_gb_per_s", "DRAM GB/s",
               lambda kernel: scaled(
                   _per(kernel.totals.dram_bytes, kernel.totals.duration_s), 1e-9)),
        text("name", "full name", lambda kernel: kernel.totals.name, wraps_em=20),
        shown=_SHOWN,
    )  # fmt: skip
