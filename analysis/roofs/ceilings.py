"""Which roof a measurement is held against: its own device's measured one, else the datasheet's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.roofs.peaks import Peaks, datasheet_peaks, normalised
from analysis.roofs.roof import Roof
from bench.records import (
    POWER_LIMIT,
    CacheRoof,
    Ceiling,
    CeilingsRecord,
    DeviceInfo,
    Environment,
    Finding,
    MathMode,
    ProfileRecord,
    RunRecord,
    Telemetry,
)
from bench.records.environment import (
    alike_memory,
    is_power_limit,
    same_device,
    same_power_limit,
)

#: Mean SM clocks that differ by more are of other settings, not of samples taken by chance.
_CLOCK_TOLERANCE = 0.1
#: Share of samples at the power limit from which on that limit may have set the clock.
_POWER_LIMITED_SHARE = 0.05


def alike_devices(theirs: Environment, ours: Environment) -> bool:
    """Whether both are of one kind: what trains has the same name and the same figures."""
    if theirs.device.backend != ours.device.backend:
        return False
    if ours.device.backend == "cpu":
        return same_device(theirs, ours)
    a_bytes, b_bytes = theirs.device.memory_bytes, ours.device.memory_bytes
    if a_bytes is None or b_bytes is None:
        return theirs.device.name == ours.device.name and a_bytes is b_bytes
    return theirs.device.name == ours.device.name and alike_memory(a_bytes, b_bytes)


@dataclass(frozen=True)
class NoCeiling:
    """Why there is no roof to hold against a run."""

    reason: str


def datasheet_ceiling(
    device: DeviceInfo, math_mode: MathMode, peaks: Sequence[Peaks] = ()
) -> tuple[Ceiling, Roof] | NoCeiling:
    """Return the datasheet peaks of `device` in `math_mode`, or why there are none.

    `peaks` of a user's own go before those of this package. A device is found by its whole name
    alone: matching parts of names takes an L40S for an L4. Nothing is assumed for one that is in
    no table. Where parts of one name differ, it must also have the power limit or the number of
    multiprocessors of the row.
    """
    name = normalised(device.name)
    rows = [row for row in (*peaks, *datasheet_peaks()) if name in row.names]
    if not rows:
        return NoCeiling(f"the datasheet table does not hold {device.name!r}")
    row = next((row for row in rows if _is_of(row, device)), None)
    if row is None:
        known = " and ".join(one.part for one in rows)
        limit = "unknown" if device.power_limit_w is None else f"{device.power_limit_w:g} W"
        return NoCeiling(
            f"the peaks of {device.name!r} differ by part: the datasheet table holds {known}, this "
            f"device's limit is {limit}, its multiprocessors are {device.cores or 'unknown'}"
        )
    if math_mode not in row.flops_per_s:
        return NoCeiling(f"the datasheet of {device.name!r} gives no {math_mode} peak")
    roof = Roof(row.flops_per_s[math_mode], row.bytes_per_s)
    ceiling = Ceiling.of(
        "a datasheet gives one figure",
        device=device.name,
        backend=device.backend,
        math_mode=math_mode,
        peak_flops_per_s=roof.peak_flops_per_s,
        peak_bytes_per_s=roof.peak_bytes_per_s,
        kind="datasheet",
        source=row.source,
        date="undated",
    )
    return ceiling, roof


def _is_of(row: Peaks, device: DeviceInfo) -> bool:
    """Whether a row of the device's name is of its part."""
    if row.multiprocessors not in (None, device.cores):
        return False
    if row.power_limit_w is None:
        return True
    limit_w = device.power_limit_w
    return limit_w is not None and is_power_limit(limit_w, row.power_limit_w)


@dataclass(frozen=True)
class UsedCeiling:
    """A ceiling, the record it comes from (None for a datasheet), and what made us fall back."""

    ceiling: Ceiling
    roof: Roof  # its two peaks, both known
    record_id: str | None
    instead_of_measured: str | None
    doubts: tuple[Finding, ...] = ()  # why the roof itself may be too low
    cache_roofs: tuple[CacheRoof, ...] = ()  # of the same record
    other_clock: str | None = None  # how its clock and the run's differ, where no load explains it


def choose_ceiling(
    record: RunRecord | ProfileRecord,
    ceilings: Sequence[CeilingsRecord],
    peaks: Sequence[Peaks] = (),
) -> UsedCeiling | NoCeiling:
    """Return the roof for `record`, or why there is none.

    The newest complete measured ceiling of the same device, driver, power limit and math mode,
    one without a doubt before any other; else the datasheet of exactly that device; else nothing:
    a peak is never assumed, and emulated arithmetic has none.
    """
    if record.environment is None or record.resolved is None:
        return NoCeiling("the record does not say on which device or in which math mode it ran")
    environment, math_mode = record.environment, record.resolved.math_mode
    if not record.resolved.native_math:
        return NoCeiling(
            f"this device computes {math_mode} by emulation, which has no roof: "
            "run it again with precision=amp or fp32 there"
        )
    obstacles: list[str] = []
    newest_first = sorted(ceilings, key=lambda one: (not _doubts(one), one.created), reverse=True)
    for candidate in newest_first:
        found = _matching(candidate, environment, math_mode)
        if isinstance(found, tuple):
            return UsedCeiling(
                *found,
                candidate.record_id,
                None,
                _doubts(candidate),
                candidate.cache_roofs,
                _other_clock(candidate.telemetry, record),
            )
        obstacles.append(found)
    why = "no ceilings were measured on this device"
    if of_this_device := [obstacle for obstacle in obstacles if obstacle]:
        why = f"no measured ceiling fits ({of_this_device[0]})"
    datasheet = datasheet_ceiling(environment.device, math_mode, peaks)
    if isinstance(datasheet, NoCeiling):
        return NoCeiling(f"{why}; {datasheet.reason}: run mlproject ceilings on that machine")
    return UsedCeiling(*datasheet, None, why)


def _doubts(candidate: CeilingsRecord) -> tuple[Finding, ...]:
    findings = candidate.verdict.findings if candidate.verdict else ()
    return tuple(finding for finding in findings if finding.level != "note")


def _other_clock(roofs: Telemetry | None, record: RunRecord | ProfileRecord) -> str | None:
    """Return how the mean SM clocks of roofs and run differ, or None where that says nothing.

    A power limit lowers the clock by the work, so the slower of the two may be at one.
    """
    run = record.telemetry if isinstance(record, RunRecord) else None
    if roofs is None or run is None:
        return None
    theirs_mhz, ours_mhz = roofs.mean("gpu_sm_clock_mhz"), run.mean("gpu_sm_clock_mhz")
    if theirs_mhz is None or ours_mhz is None:
        return None
    slower = run if ours_mhz < theirs_mhz else roofs
    limited_share = (slower.throttle_share or {}).get(POWER_LIMIT, 0.0)
    apart_mhz = abs(theirs_mhz - ours_mhz)
    if apart_mhz <= _CLOCK_TOLERANCE * theirs_mhz or limited_share > _POWER_LIMITED_SHARE:
        return None
    return (
        f"its SM clock was {theirs_mhz:.0f} MHz on average and the run's {ours_mhz:.0f} MHz: "
        "locked or application clocks may differ"
    )


def _matching(
    candidate: CeilingsRecord, environment: Environment, mode: str
) -> tuple[Ceiling, Roof] | str:
    """Return the candidate's ceiling in `mode`, or what it lacks ("" for another machine's)."""
    if candidate.environment is None or not same_device(candidate.environment, environment):
        return ""
    theirs, ours = candidate.environment.device, environment.device
    if candidate.outcome != "ok":
        return f"{candidate.record_id} ended {candidate.outcome}"
    if theirs.driver != ours.driver:
        return f"{candidate.record_id} is of driver {theirs.driver}, the run of {ours.driver}"
    limits = candidate.environment.instruction_limits, environment.instruction_limits
    if ours.backend == "cpu" and limits[0] != limits[1]:
        return (
            f"{candidate.record_id} is of instructions limited by {limits[0]}, "
            f"the run by {limits[1]}"
        )
    if not same_power_limit(theirs.power_limit_w, ours.power_limit_w):
        return (
            f"{candidate.record_id} is at a power limit of {theirs.power_limit_w} W, "
            f"the run at {ours.power_limit_w} W"
        )
    for ceiling in candidate.ceilings:
        if ceiling.math_mode == mode and ceiling.kind == "measured":
            if ceiling.peak_flops_per_s is not None and ceiling.peak_bytes_per_s is not None:
                return ceiling, Roof(
                    ceiling.peak_flops_per_s,
                    ceiling.peak_bytes_per_s,
                    ceiling.burst_flops_per_s or 0.0,
                    ceiling.one_way_bytes_per_s or 0.0,
                )
            return f"{candidate.record_id} measured only one of the two roofs of {mode}"
    return f"{candidate.record_id} did not measure {mode}"
