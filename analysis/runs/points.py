"""Where a measured step stands under the roof of the very machine it ran on.

Where a profile counted the step's traffic, its intensity is a number: algorithmic FLOP over
counted bytes, since what is attained is algorithmic FLOP too. Without counters the traffic is an
interval (fused bytes to eager bytes), so the intensity is one; no point is made up inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.profiles.profiled_step import profiled_step
from analysis.roofs.ceilings import NoCeiling, UsedCeiling, choose_ceiling
from analysis.roofs.roof import Roof
from analysis.runs.bounds import Bound, StepTimes, decide_bound
from analysis.runs.step_work import StepWork, check_possible, step_work
from bench.records import (
    Ceiling,
    CeilingsRecord,
    Finding,
    Level,
    MathMode,
    ProfileRecord,
    RunRecord,
    worst,
)


@dataclass(frozen=True)
class Refusal:
    """A run without a point, and why."""

    record_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """One run under its roof. Intensities in FLOP/byte, shares and fractions of 1.

    `intensity_min` takes the eager bytes, `intensity_max` the fused ones and `intensity_counted`
    those that a profile counted, None with its reason. What is attainable, and so the fraction of
    the roof, follows from the counted bytes, else at both ends of the interval. Once at the roof,
    always at the roof: `fraction_of_roof_max` does not pass 1 unless the minimum does.
    """

    record_id: str
    env: str
    arch: str
    precision: str
    batch_size: int
    device: str
    math_mode: MathMode
    attained_flops_per_s: float
    intensity_min: float
    intensity_max: float
    intensity_counted: float | None
    intensity_counted_missing: str
    traffic_amplification: float | None  # counted bytes over the fused ones
    executed_flops: float | None  # of one step, by the same counters
    step_flops: float  # algorithmic
    profile_record_id: str | None
    attainable_min_flops_per_s: float
    attainable_max_flops_per_s: float
    fraction_of_roof_min: float
    fraction_of_roof_max: float
    fraction_of_peak: float
    data_wait_share: float
    times: StepTimes
    bound: Bound
    bound_sure: bool
    bound_because: str
    roof: Roof
    ceiling: Ceiling
    ceiling_record_id: str | None
    findings: tuple[Finding, ...]

    @property
    def executed_per_algorithmic(self) -> float | None:
        """FLOP that the device executed for each one of the algorithm."""
        return None if self.executed_flops is None else self.executed_flops / self.step_flops

    @property
    def ridge_flop_per_byte(self) -> float:
        """The intensity of the roof's corner."""
        return self.roof.ridge_flop_per_byte

    @property
    def level(self) -> Level:
        """The worst of the findings: clean, suspect or invalid."""
        return worst(finding.level for finding in self.findings)


def roofline_point(
    record: RunRecord,
    ceilings: Sequence[CeilingsRecord],
    profiles: Sequence[ProfileRecord] = (),
) -> RooflinePoint | Refusal:
    """Place one run under its roof, or say why it has no place.

    `profiles` are searched for those that explain the run.
    """
    if record.outcome != "ok":
        reason = f"outcome {record.outcome}: {record.reason or 'no reason recorded'}"
        return Refusal(record.record_id, reason)
    work = step_work(record)
    if isinstance(work, str):
        return Refusal(record.record_id, work)
    used = choose_ceiling(record, ceilings)
    if isinstance(used, NoCeiling):
        return Refusal(record.record_id, f"no ceiling: {used.reason}")
    fallback = used.instead_of_measured
    note = Finding(code="datasheet-roof", level="note", message=f"datasheet roof: {fallback}")
    doubts = (
        Finding(code="doubtful-roof", level="suspect", message=f"its roof: {doubt.message}")
        for doubt in used.doubts
    )
    findings = ((note,) if fallback else ()) + tuple(doubts)
    return _place(record, work, used, profiles, findings)


def _roofs(record: RunRecord) -> int:
    """How many devices' roofs a run has: the processes of one CPU share that machine's."""
    backend = record.resolved.backend if record.resolved else None
    return record.config.nodes if backend == "cpu" else record.config.world_size


def _place(
    record: RunRecord,
    work: StepWork,
    used: UsedCeiling,
    profiles: Sequence[ProfileRecord],
    findings: tuple[Finding, ...],
) -> RooflinePoint:
    environment, resolved = record.environment, record.resolved
    assert environment is not None  # choose_ceiling found the device in it  # noqa: S101
    assert resolved is not None  # and the math mode in this  # noqa: S101
    roof = used.roof.of_several(_roofs(record))
    seen = profiled_step(record, work.step_s, used, profiles)
    times = work.times_under(roof, seen.dram_bytes, seen.device_busy_s)
    decision = decide_bound(times)
    attained = work.flops / work.step_s
    counted = work.flops / seen.dram_bytes if seen.dram_bytes else None
    attainable_min = roof.attainable_flops_per_s(counted or work.intensity_min)
    attainable_max = roof.attainable_flops_per_s(counted or work.intensity_max)
    fraction_min = attained / attainable_max
    return RooflinePoint(
        record_id=record.record_id,
        env=environment.label,
        arch=record.config.arch,
        precision=record.config.precision,
        batch_size=resolved.batch_size,
        device=environment.device.name,
        math_mode=resolved.math_mode,
        attained_flops_per_s=attained,
        intensity_min=work.intensity_min,
        intensity_max=work.intensity_max,
        intensity_counted=counted,
        intensity_counted_missing=seen.dram_bytes_missing,
        traffic_amplification=seen.dram_bytes / work.fused_bytes if seen.dram_bytes else None,
        executed_flops=seen.executed_flops,
        step_flops=work.flops,
        profile_record_id=seen.profile_record_id,
        attainable_min_flops_per_s=attainable_min,
        attainable_max_flops_per_s=attainable_max,
        fraction_of_roof_min=fraction_min,
        fraction_of_roof_max=max(fraction_min, min(1.0, attained / attainable_min)),
        fraction_of_peak=attained / roof.peak_flops_per_s,
        data_wait_share=work.data_wait_s / work.step_s,
        times=times,
        bound=decision.bound,
        bound_sure=decision.sure,
        bound_because=decision.because,
        roof=roof,
        ceiling=used.ceiling,
        ceiling_record_id=used.record_id,
        findings=findings + check_possible(work, times, roof, seen.executed_flops),
    )
