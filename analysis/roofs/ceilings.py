"""Which roof a measurement is held against: its own device's measured one, else the datasheet's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from analysis.roofs.peaks import NoCeiling, datasheet_ceiling
from analysis.roofs.roof import Roof
from analysis.roofs.same_device import same_device, same_power_limit
from bench.records import (
    CacheRoof,
    Ceiling,
    CeilingsRecord,
    Environment,
    Finding,
    ProfileRecord,
    RunRecord,
)

_Match = tuple[Ceiling, Roof]


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
    record: RunRecord | ProfileRecord, ceilings: Sequence[CeilingsRecord]
) -> UsedCeiling | NoCeiling:
    """Return the roof for `record`, or why there is none.

    The newest complete measured ceiling of the same device, driver, power limit and math mode,
    one without a doubt before any other; else the datasheet of exactly that device; else nothing:
    a peak is never assumed.
    """
    if record.environment is None or record.resolved is None:
        return NoCeiling("the record does not say on which device or in which math mode it ran")
    environment, math_mode = record.environment, record.resolved.math_mode
    obstacles: list[str] = []
    for candidate in sorted(ceilings, key=_preference, reverse=True):
        found = _matching(candidate, environment, math_mode)
        if isinstance(found, str):
            obstacles.append(found)
        else:
            doubts = _doubts(candidate)
            return UsedCeiling(*found, candidate.record_id, None, doubts, candidate.cache_roofs)
    why = _why_not(obstacles)
    datasheet = datasheet_ceiling(environment.device, math_mode)
    if isinstance(datasheet, NoCeiling):
        return NoCeiling(f"{why}; {datasheet.reason}: run mlproject ceilings on that machine")
    return UsedCeiling(*datasheet, None, why)


def _preference(candidate: CeilingsRecord) -> tuple[bool, datetime]:
    return not _doubts(candidate), candidate.created


def _doubts(candidate: CeilingsRecord) -> tuple[Finding, ...]:
    findings = candidate.verdict.findings if candidate.verdict else ()
    return tuple(finding for finding in findings if finding.level != "note")


def _matching(candidate: CeilingsRecord, environment: Environment, mode: str) -> _Match | str:
    """Return the candidate's ceiling in `mode`, or what it lacks ("" for another machine's)."""
    if candidate.environment is None or not same_device(candidate.environment, environment):
        return ""
    theirs, ours = candidate.environment.device, environment.device
    if candidate.outcome != "ok":
        return f"{candidate.record_id} ended {candidate.outcome}"
    if theirs.driver != ours.driver:
        return f"{candidate.record_id} is of driver {theirs.driver}, the run of {ours.driver}"
    if not same_power_limit(theirs, ours):
        return (
            f"{candidate.record_id} is at a power limit of {theirs.power_limit_w} W, "
            f"the run at {ours.power_limit_w} W"
        )
    for ceiling in candidate.ceilings:
        if ceiling.math_mode == mode and ceiling.kind == "measured":
            if ceiling.peak_flops_per_s is not None and ceiling.peak_bytes_per_s is not None:
                return ceiling, Roof(ceiling.peak_flops_per_s, ceiling.peak_bytes_per_s)
            return f"{candidate.record_id} measured only one of the two roofs of {mode}"
    return f"{candidate.record_id} did not measure {mode}"


def _why_not(obstacles: Sequence[str]) -> str:
    of_this_device = [obstacle for obstacle in obstacles if obstacle]
    if not of_this_device:
        return "no ceilings were measured on this device"
    return f"no measured ceiling fits ({of_this_device[0]})"
