"""Which roof a measurement is held against: its own device's measured one, else the datasheet's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from analysis.roofs.peaks import Peaks, datasheet_peaks, normalised
from analysis.roofs.roof import Roof
from bench.records import (
    CacheRoof,
    Ceiling,
    CeilingsRecord,
    DeviceInfo,
    Environment,
    Finding,
    MathMode,
    ProfileRecord,
    RunRecord,
)

#: The same machine reports slightly less memory after a kernel or firmware update.
_MEMORY_TOLERANCE = 0.02
#: Power limits are set in whole watts; one of 150 W reads as 149.99 or 150.0 W, by driver.
_POWER_TOLERANCE_W = 1.0


def same_device(theirs: Environment, ours: Environment) -> bool:
    """By UUID where both have one, else by name and by the machine's figures."""
    if theirs.device.backend != ours.device.backend:
        return False
    if theirs.device.uuid is not None and ours.device.uuid is not None:
        return theirs.device.uuid == ours.device.uuid
    figures = attrgetter(
        "device.name", "device.cores", "machine", "cpu_model", "cpu_signature", "cpu_cores_usable"
    )
    return figures(theirs) == figures(ours) and _alike(theirs.memory_bytes, ours.memory_bytes)


def alike_devices(theirs: Environment, ours: Environment) -> bool:
    """Whether both are of one kind: what trains has the same name and the same figures."""
    if theirs.device.backend != ours.device.backend:
        return False
    if ours.device.backend == "cpu":
        return same_device(theirs, ours)
    a_bytes, b_bytes = theirs.device.memory_bytes, ours.device.memory_bytes
    if a_bytes is None or b_bytes is None:
        return theirs.device.name == ours.device.name and a_bytes is b_bytes
    return theirs.device.name == ours.device.name and _alike(a_bytes, b_bytes)


def same_power_limit(theirs: DeviceInfo, ours: DeviceInfo) -> bool:
    """Whether both run at one limit, or neither knows of any."""
    if theirs.power_limit_w is None or ours.power_limit_w is None:
        return theirs.power_limit_w is ours.power_limit_w
    return is_power_limit(theirs.power_limit_w, ours.power_limit_w)


def is_power_limit(read_w: float, set_w: float) -> bool:
    """Whether a limit that was set to `set_w` may read as `read_w`."""
    return abs(read_w - set_w) <= _POWER_TOLERANCE_W


def _alike(a_bytes: int, b_bytes: int) -> bool:
    return abs(a_bytes - b_bytes) <= _MEMORY_TOLERANCE * max(a_bytes, b_bytes)


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
            doubts = _doubts(candidate)
            return UsedCeiling(*found, candidate.record_id, None, doubts, candidate.cache_roofs)
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
    if not same_power_limit(theirs, ours):
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
