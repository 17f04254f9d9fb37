"""Which profile explains which run, and what it counted of the run's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.profiles.counter_checks import check_counters
from analysis.roofs.ceilings import UsedCeiling, same_device
from bench.records import OpProfile, ProfileRecord, RunRecord
from bench.records.verdict.profile_verdict import judge_profile
from bench.records.verdict.record_metrics import executed_flops

NOT_PROFILED = "not profiled: mlproject profile counts the bytes of one step"


@dataclass(frozen=True)
class ProfiledStep:
    """What the profiles of a run show of one step of it; bytes are None with the reason.

    `executed_flops` and `device_busy_s` are None where no profile without a fault has them.
    """

    dram_bytes: int | None
    dram_bytes_missing: str
    executed_flops: float | None
    device_busy_s: float | None
    profile_record_id: str | None  # of the profile that counted the bytes


def explains(profile: ProfileRecord, record: RunRecord) -> bool:
    """Whether the profile was made of this run, or of its configuration on the same device."""
    if profile.timed_record_id == record.record_id:
        return True
    if profile.environment is None or record.environment is None:
        return False
    same = profile.config_id == record.config_id
    return same and same_device(profile.environment, record.environment)


def profiles_of(record: RunRecord, profiles: Sequence[ProfileRecord]) -> list[ProfileRecord]:
    """Return the profiles that explain `record`: those made of it first, then the newest first."""
    fitting = [profile for profile in profiles if explains(profile, record)]
    fitting.sort(key=lambda profile: profile.created, reverse=True)
    return sorted(fitting, key=lambda profile: profile.timed_record_id != record.record_id)


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
    busy = (_busy_s(one.ops) for one in sound if one.ops is not None)
    counted = [
        (one.counters.dram_bytes, one.record_id)
        for one in sound
        if one.counters is not None and one.counters.dram_bytes
    ]
    dram_bytes, profile_record_id = counted[0] if counted else (None, None)
    reasons = [
        reason
        # A fault of counters that are there says more than that another profile has none.
        for one in sorted(fitting, key=lambda one: one.counters is None)
        if (reason := _why_no_bytes(one, faults[one.record_id])) is not None
    ]
    return ProfiledStep(
        dram_bytes=dram_bytes,
        dram_bytes_missing="" if counted else next(iter(reasons), NOT_PROFILED),
        executed_flops=next((flops for flops in executed if flops is not None), None),
        device_busy_s=next((seconds for seconds in busy if seconds is not None), None),
        profile_record_id=profile_record_id,
    )


def _busy_s(ops: OpProfile) -> float | None:
    share = ops.device_busy_share
    return None if share is None else share * ops.step_time_s


def _why_no_bytes(profile: ProfileRecord, fault: str | None) -> str | None:
    if fault is not None:
        return f"profile {profile.record_id} rejected: {fault}"
    if profile.counters is None:
        return f"no counters: {profile.missing['counters']}"
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
