"""The report's tables of profiles, and of what is inside one: its ops and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from analysis.profiles.kernel_places import KernelPlace
from analysis.profiles.op_places import OpPlace
from analysis.report.tables.numbered_table import Shown, Table, make_table
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.quantities import interval, percent, three_digits

#: Rows of ops and kernels for people; the CSV holds them all.
_SHOWN = 25


def _scaled(value: float | None, factor: float) -> float | None:
    """`value` in another unit; what is not known stays so."""
    return None if value is None else value * factor


def _per(value: float | None, other: float | None) -> float | None:
    """The ratio of two numbers, if both are known and there is one."""
    return value / other if value is not None and other else None


@dataclass(frozen=True)
class _ProfileRow:
    profile: Annotated[int, Shown("no.")]
    record: str
    explains_runs: Annotated[str | None, Shown("of run")]
    label: Annotated[str, Shown("configuration", wraps_em=12)]
    outcome: Annotated[str, Shown("outcome")]
    profiled_step_ms: Annotated[float | None, Shown("profiled step ms")]
    ops_time_share: Annotated[float | None, Shown("ops of it", percent)]
    device_busy_share: Annotated[float | None, Shown("device busy", percent)]
    launch_gap_ms: Annotated[float | None, Shown("launch gaps ms")]
    ops_matched_share: Annotated[float | None, Shown("ops matched", percent)]
    counted_dram_gb: Annotated[float | None, Shown("counted GB")]
    executed_gflop: Annotated[float | None, Shown("executed GFLOP")]
    verdict: Annotated[str, Shown("verdict")]


def profiles_table(profiles: Sequence[PlacedProfile]) -> Table:
    """One row per profile."""
    rows = [
        _ProfileRow(
            profile=profile.number,
            record=profile.name,
            explains_runs=", ".join(str(run.number) for run in profile.runs) or None,
            label=profile.label,
            outcome=profile.record.outcome,
            profiled_step_ms=ops.step_time_s * 1e3 if ops else None,
            ops_time_share=_per(ops.ops_time_s, ops.step_time_s) if ops else None,
            device_busy_share=profile.metrics.get("device_busy_share"),
            launch_gap_ms=_scaled(ops.launch_gap_s, 1e3) if ops else None,
            ops_matched_share=profile.metrics.get("ops_matched_share"),
            counted_dram_gb=profile.metrics.get("counted_dram_gb"),
            executed_gflop=profile.metrics.get("executed_gflop"),
            verdict=profile.verdict,
        )
        for profile in profiles
        for ops in (profile.record.ops,)
    ]
    return make_table("profiles", "Profiles", _ProfileRow, rows)


@dataclass(frozen=True)
class _CopiesRow:
    profile: Annotated[int, Shown("profile")]
    direction: Annotated[str, Shown("direction")]
    calls: Annotated[int, Shown("calls")]
    megabytes: Annotated[float, Shown("MB")]
    time_ms: Annotated[float, Shown("ms")]
    gb_per_s: Annotated[float | None, Shown("GB/s")]


def copies_table(profiles: Sequence[PlacedProfile]) -> Table:
    """Copies between host and device in one step of each profile that saw any."""
    rows = [
        _CopiesRow(
            profile=profile.number,
            direction=copies.direction,
            calls=copies.calls,
            megabytes=copies.bytes / 1e6,
            time_ms=copies.time_s * 1e3,
            gb_per_s=copies.bytes / copies.time_s / 1e9 if copies.time_s else None,
        )
        for profile in profiles
        if profile.record.ops
        for copies in profile.record.ops.copies or ()
    ]
    return make_table("copies", "Copies in one step", _CopiesRow, rows)


@dataclass(frozen=True)
class _CpuRow:
    profile: Annotated[int, Shown("profile")]
    source: Annotated[str, Shown("source")]
    scope: Annotated[str, Shown("scope")]
    iterations: Annotated[int | None, Shown("iterations")]
    ipc: Annotated[float | None, Shown("IPC")]
    cpi: Annotated[float | None, Shown("CPI")]
    cache_miss_share: Annotated[float | None, Shown("cache misses", percent)]
    branch_miss_share: Annotated[float | None, Shown("branch misses", percent)]
    executed_gflop_per_step: Annotated[float | None, Shown("GFLOP a step")]
    machine_dram_gb_per_step: Annotated[float | None, Shown("GB a step, whole machine")]
    least_running_share: Annotated[float | None, Shown("counted in", percent)]


def cpu_counters_table(profiles: Sequence[PlacedProfile]) -> Table:
    """What the processor counted over the profiled window of each profile that has it."""
    rows = [
        _CpuRow(
            profile=profile.number,
            source=counters.source,
            scope=counters.scope,
            iterations=counters.iterations,
            ipc=counters.ipc,
            cpi=counters.cpi,
            cache_miss_share=profile.metrics.get("cache_miss_share"),
            branch_miss_share=profile.metrics.get("branch_miss_share"),
            executed_gflop_per_step=_per(_scaled(counters.flops, 1e-9), counters.iterations),
            machine_dram_gb_per_step=_per(_scaled(counters.dram_bytes, 1e-9), counters.iterations),
            least_running_share=min(counters.running_share.values(), default=None),
        )
        for profile in profiles
        if (counters := profile.record.cpu_counters)
    ]
    return make_table("cpu-counters", "Processor counters", _CpuRow, rows)


def _eager_to_fused(eager: float, fused: float | None) -> str:
    return f"{three_digits(eager)} and up" if fused is None else interval(eager, fused)


@dataclass(frozen=True)
class _OpRow:
    number: Annotated[int, Shown("no.")]
    label: Annotated[str, Shown("op")]
    op: str
    phase: Annotated[str, Shown("phase")]
    calls: Annotated[int, Shown("calls")]
    time_ms: Annotated[float, Shown("ms")]
    time_share: Annotated[float, Shown("of the ops' time", percent)]
    gflop: Annotated[float | None, Shown("GFLOP")]
    elementwise_gflop: Annotated[float | None, Shown("elementwise GFLOP")]
    attained_gflop_per_s: Annotated[float | None, Shown("GFLOP/s")]
    intensity_eager_flop_per_byte: Annotated[float | None, Shown("FLOP/byte", _eager_to_fused)]
    intensity_fused_flop_per_byte: float | None
    eager_gb_per_s: Annotated[float | None, Shown("eager GB/s")]
    remark: Annotated[str | None, Shown("remark", wraps_em=14)]


def ops_table(profile: PlacedProfile) -> Table:
    """Time and work of a profile's ops, the longest first."""
    rows = [
        _OpRow(
            number=op.rank,
            label=op.time.label,
            op=op.time.op,
            phase=op.part,
            calls=op.time.calls,
            time_ms=op.time.time_s * 1e3,
            time_share=op.share,
            gflop=_scaled(op.time.flops, 1e-9),
            elementwise_gflop=_scaled(op.time.elementwise_flops, 1e-9),
            attained_gflop_per_s=_scaled(op.flops_per_s, 1e-9),
            intensity_eager_flop_per_byte=op.intensity_min if op.kind else None,
            intensity_fused_flop_per_byte=op.intensity_max if op.kind else None,
            eager_gb_per_s=_scaled(_per(op.time.eager_bytes, op.time.time_s), 1e-9),
            remark=_remark(op),
        )
        for op in (profile.ops.ops if profile.ops else ())
    ]
    title = f"Ops of profile {profile.number}, {profile.label}"
    return make_table(f"ops-{profile.number}", title, _OpRow, rows, shown=_SHOWN)


def _remark(op: OpPlace) -> str | None:
    if op.why_no_place is not None:
        return op.why_no_place
    return "faster than DRAM: partly from a cache" if op.from_cache else None


@dataclass(frozen=True)
class _KernelRow:
    number: Annotated[int, Shown("no.")]
    kernel: Annotated[str, Shown("kernel")]
    launches: Annotated[int, Shown("launches")]
    duration_ms: Annotated[float | None, Shown("ms")]
    time_share: Annotated[float | None, Shown("of the kernels' time", percent)]
    executed_gflop: Annotated[float | None, Shown("executed GFLOP")]
    tensor_gflop: Annotated[float | None, Shown("on tensor cores")]
    executed_gflop_per_s: Annotated[float | None, Shown("GFLOP/s")]
    intensity_l1_flop_per_byte: Annotated[float | None, Shown("FLOP/L1 byte")]
    intensity_l2_flop_per_byte: Annotated[float | None, Shown("FLOP/L2 byte")]
    intensity_dram_flop_per_byte: Annotated[float | None, Shown("FLOP/DRAM byte")]
    dram_gb_per_s: Annotated[float | None, Shown("DRAM GB/s")]
    name: Annotated[str, Shown("full name", wraps_em=20)]


def kernels_table(profile: PlacedProfile) -> Table:
    """Counters of a profile's kernels, the longest first."""
    kernels = profile.kernels.kernels if profile.kernels else ()
    title = f"Kernels of profile {profile.number}, {profile.label}"
    rows = map(_kernel_row, kernels)
    return make_table(f"kernels-{profile.number}", title, _KernelRow, rows, shown=_SHOWN)


def _kernel_row(kernel: KernelPlace) -> _KernelRow:
    totals = kernel.totals
    return _KernelRow(
        number=kernel.rank,
        kernel=kernel.name,
        launches=totals.launches,
        duration_ms=_scaled(totals.duration_s, 1e3),
        time_share=kernel.share,
        executed_gflop=_scaled(totals.flops, 1e-9),
        tensor_gflop=_scaled(totals.tensor_flops, 1e-9),
        executed_gflop_per_s=_scaled(kernel.flops_per_s, 1e-9),
        intensity_l1_flop_per_byte=kernel.intensities.get("L1"),
        intensity_l2_flop_per_byte=kernel.intensities.get("L2"),
        intensity_dram_flop_per_byte=kernel.intensities.get("DRAM"),
        dram_gb_per_s=_scaled(_per(totals.dram_bytes, totals.duration_s), 1e-9),
        name=totals.name,
    )
