"""The report's tables of runs and profiles together: bytes by three counts, copies, counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from analysis.report.table import Column, Table, make_table, quantity, scaled, share_of
from analysis.report.tables import RUN_NUMBER
from analysis.runs.placed import PlacedRun
from analysis.runs.placed_profiles import PlacedProfile
from bench.records import CpuCounters


def _giga_counted(result: PlacedRun) -> float | None:
    point = result.point
    if point is None or point.intensity_counted is None:
        return None
    return point.step_flops / point.intensity_counted / 1e9


_INTENSITIES = (
    RUN_NUMBER,
    Column("configuration", ("label",), lambda r: r.label, wraps_em=12),
    quantity("FLOP/byte, fused", "intensity_fused_flop_per_byte", lambda r: r.point.intensity_max),
    quantity("eager", "intensity_eager_flop_per_byte", lambda r: r.point.intensity_min),
    quantity("counted", "intensity_counted_flop_per_byte", lambda r: r.point.intensity_counted),
    quantity("GB, fused", "step_fused_gb",
            lambda r: r.point.step_flops / r.point.intensity_max / 1e9),
    quantity("eager", "step_eager_gb", lambda r: r.point.step_flops / r.point.intensity_min / 1e9),
    quantity("counted", "counted_dram_gb", _giga_counted),
    quantity("counted / fused", "traffic_amplification", lambda r: r.point.traffic_amplification),
    quantity("executed / algorithmic FLOP", "executed_per_algorithmic_flop",
            lambda r: r.point.executed_per_algorithmic),
    Column("not counted because", ("not_counted_because",),
           lambda r: r.point.intensity_counted_missing or None, wraps_em=16),
)  # fmt: skip

_PROFILES = (
    Column("no.", ("profile", "record"), lambda p: (p.number, p.name), lambda v: str(v[0]), True),
    Column("of run", ("explains_runs",), lambda p: _explained(p)),
    Column("configuration", ("label",), lambda p: p.label, wraps_em=12),
    Column("outcome", ("outcome",), lambda p: p.record.outcome),
    quantity("profiled step ms", "profiled_step_ms",
            lambda p: p.record.ops and p.record.ops.step_time_s * 1e3),
    share_of("ops of it", "ops_time_share", lambda p: _ops_share(p)),
    share_of("device busy", "device_busy_share", lambda p: p.metrics.get("device_busy_share")),
    quantity("launch gaps ms", "launch_gap_ms",
            lambda p: p.record.ops and scaled(p.record.ops.launch_gap_s, 1e3)),
    share_of("ops matched", "ops_matched_share", lambda p: p.metrics.get("ops_matched_share")),
    quantity("counted GB", "counted_dram_gb", lambda p: p.metrics.get("counted_dram_gb")),
    quantity("executed GFLOP", "executed_gflop", lambda p: p.metrics.get("executed_gflop")),
    Column("verdict", ("verdict",), lambda p: p.verdict),
)  # fmt: skip


def _explained(profile: PlacedProfile) -> str | None:
    return ", ".join(str(result.number) for result in profile.runs) or None


def _ops_share(profile: PlacedProfile) -> float | None:
    ops = profile.record.ops
    return ops.ops_time_s / ops.step_time_s if ops and ops.step_time_s else None


_COPIES = (
    Column("profile", ("profile",), lambda pair: pair[0].number, numeric=True),
    Column("direction", ("direction",), lambda pair: pair[1].direction),
    Column("calls", ("calls",), lambda pair: pair[1].calls, numeric=True),
    quantity("MB", "megabytes", lambda pair: pair[1].bytes / 1e6),
    quantity("ms", "time_ms", lambda pair: pair[1].time_s * 1e3),
    quantity("GB/s", "gb_per_s",
            lambda pair: pair[1].bytes / pair[1].time_s / 1e9 if pair[1].time_s else None),
)  # fmt: skip


def _per_iteration(field: str) -> Any:
    def read(pair: tuple[PlacedProfile, CpuCounters]) -> float | None:
        counters = pair[1]
        count = getattr(counters, field)
        return None if count is None or not counters.iterations else (
            count / counters.iterations / 1e9
        )  # fmt: skip

    return read


_CPU = (
    Column("profile", ("profile",), lambda pair: pair[0].number, numeric=True),
    Column("source", ("source",), lambda pair: pair[1].source),
    Column("scope", ("scope",), lambda pair: pair[1].scope),
    Column("iterations", ("iterations",), lambda pair: pair[1].iterations, numeric=True),
    quantity("IPC", "ipc", lambda pair: pair[1].ipc),
    quantity("CPI", "cpi", lambda pair: pair[1].cpi),
    share_of("cache misses", "cache_miss_share",
           lambda pair: pair[0].metrics.get("cache_miss_share")),
    share_of("branch misses", "branch_miss_share",
           lambda pair: pair[0].metrics.get("branch_miss_share")),
    quantity("GFLOP a step", "executed_gflop_per_step", _per_iteration("flops")),
    quantity("GB a step, whole machine", "machine_dram_gb_per_step", _per_iteration("dram_bytes")),
    share_of("counted in", "least_running_share",
           lambda pair: min(pair[1].running_share.values(), default=None)),
)  # fmt: skip


def intensities_table(number: int, results: Iterable[PlacedRun]) -> Table:
    """FLOP per byte of every placed run by the model's two counts and by counters."""
    placed = [result for result in results if result.point]
    title = "Arithmetic intensity by fused, eager and counted bytes, per step"
    return make_table(number, "intensities", title, _INTENSITIES, placed)


def profiles_table(number: int, profiles: Sequence[PlacedProfile]) -> Table:
    """One row per profile."""
    return make_table(number, "profiles", "Profiles", _PROFILES, profiles)


def copies_table(number: int, profiles: Iterable[PlacedProfile]) -> Table:
    """Copies between host and device in one step of each profile that saw any."""
    pairs = [
        (profile, copies)
        for profile in profiles
        for copies in (profile.record.ops.copies or () if profile.record.ops else ())
    ]
    return make_table(number, "copies", "Copies in one step", _COPIES, pairs)


def cpu_counters_table(number: int, profiles: Iterable[PlacedProfile]) -> Table:
    """What the processor counted over the profiled window of each profile that has it."""
    pairs = [
        (profile, profile.record.cpu_counters)
        for profile in profiles
        if profile.record.cpu_counters is not None
    ]
    return make_table(number, "cpu-counters", "Processor counters", _CPU, pairs)
