"""Which profile explains which run, and what it counted of the run's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.profiles.places import short_kernel_name
from analysis.roofs.ceilings import UsedCeiling
from analysis.roofs.roof import CEILING_MARGIN, Roof
from bench.records import (
    CacheRoof,
    Counters,
    Finding,
    KernelTotals,
    ProfileRecord,
    RunRecord,
)
from bench.records.base import ratio
from bench.records.environment import same_device
from bench.records.metrics import executed_flops
from bench.records.profile_verdict import judge_profile
from bench.records.step_settings import is_of_step

#: A cache's roof is measured by reading. Reads and writes have paths of their own, so up to twice
#: of it can be, and is only suspect.
_READ_AND_WRITE = 2.0


def check_counters(
    counters: Counters, roof: Roof, cache_roofs: Sequence[CacheRoof], step_s: float | None
) -> tuple[Finding, ...]:
    """Return findings for rates over 103 % of a ceiling; cache levels count where measured.

    A kernel's rate is its own counts over its own duration, both of the profile. The step's is
    the counts over `step_s`, the timed run's; None where no run was timed.
    """
    #: what, the counter held against it, its rate, and from how much of that on it cannot be
    ceilings = [("compute", "flops", roof.most_flops_per_s, 1.0)]
    ceilings.append(("memory", "dram_bytes", roof.most_bytes_per_s, 1.0))
    for cache in cache_roofs:
        if cache.level in ("L1", "L2") and cache.peak_bytes_per_s is not None:
            field = f"{cache.level.lower()}_bytes"
            ceilings.append((cache.level, field, cache.peak_bytes_per_s, _READ_AND_WRITE))
    findings = []
    for which, field, peak, possible in ceilings:
        for scope, (share, what) in _worst_shares(counters, step_s, field, peak).items():
            if share <= CEILING_MARGIN:
                continue
            level: Literal["invalid", "suspect"] = "suspect"
            why = "more than reading alone, by which that ceiling was measured"
            if share > CEILING_MARGIN * possible:
                level, why = "invalid", "impossible; the counters or the ceiling are wrong"
            message = f"{what} {100 * share:.0f} % of the {which} ceiling: {why}"
            code = f"{scope}-above-{which}-roof"
            findings.append(Finding(code=code, level=level, message=message))
    return tuple(findings)


def _worst_shares(
    counters: Counters, step_s: float | None, field: str, peak: float
) -> dict[str, tuple[float, str]]:
    """Of a ceiling; 0 where a counter or the duration is not known, which is found elsewhere."""

    def share_of(counts: KernelTotals | Counters, seconds: float | None) -> float:
        return (ratio(getattr(counts, field), seconds) or 0.0) / peak

    found = {
        "step": (share_of(counters, step_s), "the counts in the timed step's duration would be")
    }
    kernels = {one.name: share_of(one, one.duration_s) for one in counters.per_kernel}
    if not kernels:
        return found
    worst = max(kernels, key=kernels.__getitem__)
    above = sum(share > CEILING_MARGIN for share in kernels.values())
    others = f", the first of {above} above it," if above > 1 else ""
    return {"kernel": (kernels[worst], f"kernel {short_kernel_name(worst)}{others} at"), **found}


#: How the reasons begin for which a run has no counted bytes, where no counters looked at it.
NOT_PROFILED = "not profiled: mlproject profile counts the bytes of one step"
NO_COUNTERS = "no counters: "


@dataclass(frozen=True)
class ProfiledStep:
    """What the profiles of a run show of one step of it; bytes are None with the reason.

    `executed_flops` and `device_busy_s` are None where no profile without a fault has them.
    The device's busy time leaves out communication that nothing hides.
    """

    dram_bytes: int | None
    dram_bytes_missing: str
    executed_flops: float | None
    device_busy_s: float | None


#: Of a step that no profile looked at.
NOT_SEEN = ProfiledStep(None, NOT_PROFILED, None, None)


def explains(profile: ProfileRecord, record: RunRecord) -> bool:
    """Whether the profile was made of this run, or of the same step on the same device."""
    if profile.timed_record_id == record.record_id:
        return True
    if profile.environment is None or record.environment is None:
        return False
    alike = same_device(profile.environment, record.environment)
    return alike and is_of_step(profile, record)


def profiles_of(record: RunRecord, profiles: Sequence[ProfileRecord]) -> list[ProfileRecord]:
    """Return the profiles that explain `record`: those made of it first, then the newest first."""
    return sorted(
        (profile for profile in profiles if explains(profile, record)),
        key=lambda profile: (profile.timed_record_id == record.record_id, profile.created),
        reverse=True,
    )


def profiled_step(
    record: RunRecord, step_s: float, used: UsedCeiling, profiles: Sequence[ProfileRecord]
) -> ProfiledStep:
    """Return what the best of the profiles that explain `record` saw of its step.

    Bytes are taken only from a profile that passes every check against this very run and its roof.
    """
    fitting = profiles_of(record, profiles)
    faults = {one.record_id: _fault(one, record, step_s, used) for one in fitting}
    sound = [one for one in fitting if faults[one.record_id] is None]
    executed = (executed_flops(one) for one in sound)
    busy = (one.ops.computing_s for one in sound if one.ops is not None)
    counted = (one.counters.dram_bytes for one in sound if one.counters is not None)
    dram_bytes = next(filter(None, counted), None)
    # A fault of counters that are there says more than that another profile has none.
    with_counters_first = sorted(fitting, key=lambda one: one.counters is None)
    reasons = (_why_no_bytes(one, faults[one.record_id]) for one in with_counters_first)
    return ProfiledStep(
        dram_bytes=dram_bytes,
        dram_bytes_missing="" if dram_bytes else next(filter(None, reasons), NOT_PROFILED),
        executed_flops=next((flops for flops in executed if flops is not None), None),
        device_busy_s=next((busy_s for busy_s in busy if busy_s is not None), None),
    )


def _why_no_bytes(profile: ProfileRecord, fault: str | None) -> str | None:
    if fault is not None:
        return f"profile {profile.record_id} rejected: {fault}"
    if profile.counters is None:
        return f"{NO_COUNTERS}{profile.missing['counters']}"
    if profile.counters.dram_bytes is None:
        return f"no DRAM bytes: {profile.counters.missing['dram_bytes']}"
    return None if profile.counters.dram_bytes else "the counters saw no DRAM traffic at all"


def _fault(
    profile: ProfileRecord, record: RunRecord, step_s: float, used: UsedCeiling
) -> str | None:
    """What makes the profile's numbers unusable; a metric that is absent is no fault of others."""
    findings = list(judge_profile(profile, record).findings)
    if profile.counters is not None:
        findings += check_counters(profile.counters, used.roof, used.cache_roofs, step_s)
    harmless = {"metric-missing", profile.outcome}
    faults = (f.message for f in findings if f.level == "invalid" and f.code not in harmless)
    return next(faults, None)
