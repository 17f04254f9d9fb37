"""Where a measured step stands under the roof of the very machine it ran on.

Where a profile counted the step's traffic, its intensity is a number: algorithmic FLOP over
counted bytes, since what is attained is algorithmic FLOP too. Without counters the traffic is an
interval (fused bytes to eager bytes), so the intensity is one; no point is made up inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.profiles.profiled_step import ProfiledStep, profiled_step
from analysis.roofs.ceilings import NoCeiling, UsedCeiling, choose_ceiling
from analysis.roofs.peaks import Peaks
from analysis.roofs.roof import CEILING_MARGIN, Roof
from analysis.runs.bounds import Bound, StepTimes, decide_bound
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
from bench.records.verdict.record_metrics import data_wait_share, step_cost
from bench.records.verdict.step_settings import precision_of


@dataclass(frozen=True)
class StepWork:
    """Work and time of one iteration (one optimizer step, however many batches it took).

    `causal_skipped_flops` are the part of `flops` that fused attention may skip.
    """

    flops: float
    fused_bytes: float
    eager_bytes: float
    compulsory_bytes: float
    step_s: float
    data_wait_s: float | None  # None where it is not known
    causal_skipped_flops: float = 0.0

    @property
    def computed_share(self) -> float:
        """The part of the FLOP that the kernels compute for certain: what roofs hold for."""
        return 1 - self.causal_skipped_flops / self.flops

    @property
    def intensity_min(self) -> float:
        """FLOP/byte if every operation goes through DRAM."""
        return self.flops / self.eager_bytes

    @property
    def intensity_max(self) -> float:
        """FLOP/byte if every fusable chain is fused."""
        return self.flops / self.fused_bytes

    def times_under(
        self, roof: Roof, counted_bytes: float | None = None, device_busy_s: float | None = None
    ) -> StepTimes:
        """Return the measured times beside those that `roof` asks for.

        Counted bytes, where there are any, take the place of the modelled interval.
        """
        least, most = self.fused_bytes, self.eager_bytes
        if counted_bytes is not None:
            least = most = counted_bytes
        return StepTimes(
            measured_s=self.step_s,
            data_wait_s=self.data_wait_s,
            compute_s=self.computed_share * self.flops / roof.peak_flops_per_s,
            memory_min_s=least / roof.peak_bytes_per_s,
            memory_max_s=most / roof.peak_bytes_per_s,
            device_busy_s=device_busy_s,
            counted=counted_bytes is not None,
        )


def step_work(record: RunRecord) -> StepWork | str:
    """Return the work of one iteration of `record`, all its devices together, or why not.

    The step's time is the window's wall time over its iterations, so that nothing that happened
    between two iterations is lost.
    """
    measurement, complexity = record.measurement, record.complexity
    if measurement is None:
        return "nothing was measured"
    if complexity is None:
        return f"no complexity: {record.missing.get('complexity', 'no reason recorded')}"
    if not (complexity.step_flops and complexity.fused_bytes and complexity.eager_bytes):
        return f"the complexity model counts no FLOP or no bytes in {complexity.arch}"
    batches, ranks = record.config.grad_accum_steps, record.config.world_size
    if ranks * batches * complexity.batch_size != measurement.samples_per_iteration:
        return (
            f"the complexity is of {ranks * batches} x {complexity.batch_size} "
            f"{complexity.sample}s per iteration, the measurement of "
            f"{measurement.samples_per_iteration}"
        )
    step_s = measurement.window_s / len(measurement.iteration_times_s)
    cost = step_cost(complexity, batches)
    return StepWork(
        flops=ranks * cost.flops,
        fused_bytes=ranks * cost.fused_bytes,
        eager_bytes=ranks * cost.eager_bytes,
        compulsory_bytes=ranks * cost.compulsory_bytes,
        step_s=step_s,
        data_wait_s=min(data_wait_share(measurement), 1.0) * step_s,
        causal_skipped_flops=ranks * cost.causal_skipped_flops,
    )


def check_possible(
    work: StepWork,
    times: StepTimes,
    roof: Roof,
    executed_flops: float | None = None,
    *,
    what: str = "the run",
) -> tuple[Finding, ...]:
    """Return findings for a step that outruns its roof by more than 3 %.

    Arithmetic is what was executed, where counters say it: Winograd's needs less than the
    algorithm. Else it is what the kernels cannot skip. A step shorter than a burst may reach the
    burst's rate. Against the memory roof only the compulsory bytes are impossible: a cache can keep
    small tensors out of DRAM. Outrunning the fused bytes is suspect. `what` may be wrong, where it
    is not the work or the roof.
    """
    findings: list[Finding] = []
    flops = work.computed_share * work.flops if executed_flops is None else executed_flops
    compute_s = flops / roof.most_flops_per_s
    compulsory_s = work.compulsory_bytes / roof.peak_bytes_per_s
    most_s = CEILING_MARGIN * times.measured_s
    for which, least_s in (("compute", compute_s), ("memory", compulsory_s)):
        if least_s > most_s:
            message = (
                f"{100 * least_s / times.measured_s:.0f} % of the {which} ceiling: impossible; "
                f"{what}, its work count or the ceiling is wrong"
            )
            findings.append(Finding(code=f"above-{which}-roof", level="invalid", message=message))
    if compulsory_s <= most_s < times.memory_min_s:
        percent = 100 * times.memory_min_s / times.measured_s
        message = (
            f"its fused bytes alone would take {percent:.0f} % of the step: "
            f"a cache kept many of them, the model counts too many, or {what} is wrong"
        )
        findings.append(Finding(code="below-fused-traffic", level="suspect", message=message))
    return tuple(findings)


def _of_causal_masks(computed_share: float) -> Iterator[Finding]:
    if computed_share < 0.995:
        message = (
            f"fused attention may skip {1 - computed_share:.0%} of the counted FLOP, behind causal "
            "masks: shares of the roof are of the rest"
        )
        yield Finding(code="causal-mask", level="note", message=message)


#: The finding of a run whose roof was measured while something disturbed it.
DOUBTFUL_ROOF = "doubtful-roof"


@dataclass(frozen=True)
class Refusal:
    """Why a run has no point."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """One run under its roof. Intensities in FLOP/byte, shares and fractions of 1.

    `intensity_min` takes the eager bytes, `intensity_max` the fused ones and `intensity_counted`
    those that a profile counted, None with its reason. What is attainable, and so the fraction of
    the roof, follows from the counted bytes, else at both ends of the interval. Where fused
    attention may skip a part of the FLOP, more of them are attainable. Once at the roof, always at
    the roof: `fraction_of_roof_max` does not pass 1 unless the minimum does.
    `imported_from` is the file of an imported run: its FLOP are modelled too, by what the file
    names.
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
    data_wait_share: float | None
    times: StepTimes
    bound: Bound
    bound_sure: bool
    bound_because: str
    roof: Roof
    ceiling: Ceiling
    ceiling_record_id: str | None
    findings: tuple[Finding, ...]
    imported_from: str | None = None

    @property
    def executed_per_algorithmic(self) -> float | None:
        """FLOP that the device executed for each one of the algorithm."""
        return None if self.executed_flops is None else self.executed_flops / self.step_flops

    @property
    def level(self) -> Level:
        """The worst of the findings: clean, suspect or invalid."""
        return worst(finding.level for finding in self.findings)


def roofline_point(
    record: RunRecord,
    ceilings: Sequence[CeilingsRecord],
    profiles: Sequence[ProfileRecord] = (),
    peaks: Sequence[Peaks] = (),
) -> RooflinePoint | Refusal:
    """Place one run under its roof, or say why it has no place.

    `profiles` are searched for those that explain the run. `peaks` are datasheet figures of a
    user's own.
    """
    if record.outcome != "ok":
        return Refusal(f"outcome {record.outcome}: {record.reason or 'no reason recorded'}")
    work = step_work(record)
    if isinstance(work, str):
        return Refusal(work)
    used = choose_ceiling(record, ceilings, peaks)
    if isinstance(used, NoCeiling):
        return Refusal(f"no ceiling: {used.reason}")
    fallback = used.instead_of_measured
    note = Finding(code="datasheet-roof", level="note", message=f"datasheet roof: {fallback}")
    # A note, since the run's own numbers are no worse for it: a report has it once for each roof.
    doubts = (
        Finding(code=DOUBTFUL_ROOF, level="note", message=f"its roof: {doubt.message}")
        for doubt in used.doubts
    )
    clock = Finding(code="other-clock", level="note", message=f"its roof: {used.other_clock}")
    findings = (
        *((note,) if fallback else ()),
        *doubts,
        *((clock,) if used.other_clock else ()),
    )
    return _place(record, work, used, profiles, findings)


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
    # The processes of one CPU share that machine's roof.
    roofs = record.config.nodes if resolved.backend == "cpu" else record.config.world_size
    roof = used.roof.of_several(roofs)
    return under_roof(
        work,
        roof,
        used,
        profiled_step(record, work.step_s, used, profiles),
        record_id=record.record_id,
        env=environment.label,
        arch=record.config.arch,
        precision=precision_of(resolved),
        batch_size=resolved.batch_size,
        device=environment.device.name,
        math_mode=resolved.math_mode,
        findings=findings,
    )


def under_roof(
    work: StepWork,
    roof: Roof,
    used: UsedCeiling,
    seen: ProfiledStep,
    *,
    findings: tuple[Finding, ...],
    what: str = "the run",
    **whose: Any,
) -> RooflinePoint:
    """Return the point of `work` under `roof`, that of all its devices together.

    `seen` is what profiles saw of the step, `whose` the fields of the point that name its run. To
    `findings` come those of a step that outruns the roof; `what` as in `check_possible`.
    """
    times = work.times_under(roof, seen.dram_bytes, seen.device_busy_s)
    decision = decide_bound(times)
    attained = work.flops / work.step_s
    counted = work.flops / seen.dram_bytes if seen.dram_bytes else None
    share = work.computed_share
    attainable_min = roof.attainable_flops_per_s(share * (counted or work.intensity_min)) / share
    attainable_max = roof.attainable_flops_per_s(share * (counted or work.intensity_max)) / share
    fraction_min = attained / attainable_max
    return RooflinePoint(
        **whose,
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
        fraction_of_peak=share * attained / roof.peak_flops_per_s,
        data_wait_share=None if work.data_wait_s is None else work.data_wait_s / work.step_s,
        times=times,
        bound=decision.bound,
        bound_sure=decision.sure,
        bound_because=decision.because,
        roof=roof,
        ceiling=used.ceiling,
        ceiling_record_id=used.record_id,
        findings=(
            *findings,
            *_of_causal_masks(share),
            *check_possible(work, times, roof, seen.executed_flops, what=what),
        ),
    )
