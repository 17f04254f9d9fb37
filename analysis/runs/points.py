"""Where a step stands under the roof of the machine it ran on, or why nowhere.

Where the device itself counted the window's traffic, or a profile a step's, its intensity is a
number: algorithmic FLOP over counted bytes, since what is attained is algorithmic FLOP too. The
device's count is of the very window, so it goes first. Without counters the traffic is an
interval (fused bytes to eager bytes), so the intensity is one; no point is made up inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from analysis.account import StepAccount, account_of
from analysis.presentation.columns import Row
from analysis.profiles import (
    NO_COUNTERS,
    NOT_PROFILED,
    NOT_SEEN,
    ProfiledStep,
    profiled_step,
    profiles_of,
)
from analysis.roofs import CEILING_MARGIN, Peaks, Roof, UsedCeiling, choose_ceiling
from analysis.runs.bounds import Bound, StepTimes, check_possible, decide_bound, step_times
from bench.errors import Unknown
from bench.records import (
    GPM,
    AllReduce,
    Ceiling,
    CeilingsRecord,
    Finding,
    ProfileRecord,
    RunRecord,
)
from bench.records.base import Weight, ratio
from bench.records.complexity import LEAST_IN_FP32
from bench.records.metrics import StepCost, data_wait_share, iteration_dram_bytes, step_cost

#: Shares of the compute peak: of what the kernels compute for certain, of what the mathematics
#: needs, of all that is counted.
SHARES_OF_PEAK = ("fraction_of_peak", "mfu_required", "mfu_counted")
#: The finding of a run whose roof was measured while something disturbed it.
DOUBTFUL_ROOF = "doubtful-roof"


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """One run under its roof. Intensities in FLOP/byte, shares and fractions of 1.

    `intensity_min` takes the eager bytes, `intensity_max` the fused ones and `intensity_counted`
    those that were counted, None with its reason. What is attainable, and so the fraction of
    the roof, follows from the counted bytes, else at both ends of the interval. Where fused
    attention may skip a part of the FLOP, more of them are attainable. Once at the roof, always at
    the roof: `fraction_of_roof_max` does not pass 1 unless the minimum does. The FLOP of an
    imported run are modelled too, by what its file names.
    """

    step_flops: int  # algorithmic
    attained_flops_per_s: float
    intensity_min: float
    intensity_max: float
    intensity_counted: float | None
    intensity_counted_missing: str
    counted_by: str | None  # GPM (NVML's counters of the window) or ncu
    traffic_amplification: float | None  # counted bytes over the fused ones
    executed_per_algorithmic_flop: float | None  # by the same counters
    attainable_min_flops_per_s: float
    attainable_max_flops_per_s: float
    fraction_of_roof_min: float
    fraction_of_roof_max: float
    fraction_of_peak: float
    mfu_required: float | None
    mfu_counted: float
    times: StepTimes
    account: StepAccount | None  # of its own profiled step or a profile's, undisturbed if possible
    bound: Bound
    bound_sure: bool
    bound_because: str
    roof: Roof  # of all its devices
    ceiling: Ceiling
    ceiling_record_id: str | None
    findings: tuple[Finding, ...]
    all_reduces: tuple[AllReduce, ...]  # measured with the roof

    @property
    def data_wait_share(self) -> float | None:
        """The part of the step that waits for data; None where it is not known."""
        wait_s = self.times.data_wait_s
        return None if wait_s is None else wait_s / self.times.measured_s

    @property
    def row(self) -> Row:
        """What the place says of the run's iteration, by the names of columns."""

        def gigabytes(intensity: float | None) -> float | None:
            return self.step_flops / intensity / 1e9 if intensity and looked_at else None

        why = self.intensity_counted_missing
        looked_at = not why.startswith((NOT_PROFILED, NO_COUNTERS))
        return {
            **vars(self),
            "math_mode": self.ceiling.math_mode,
            "math_mode_ran": self.ceiling.math_mode,
            "under_the_roof": [f"{one.level}: {one.sentence}" for one in self.findings],
            "attained_gflops": self.attained_flops_per_s / 1e9,
            "attainable_gflops_min": self.attainable_min_flops_per_s / 1e9,
            "attainable_gflops_max": self.attainable_max_flops_per_s / 1e9,
            "ridge_flop_per_byte": self.roof.ridge_flop_per_byte,
            "peak_gflops": self.roof.peak_flops_per_s / 1e9,
            "peak_gb_per_s": self.roof.peak_bytes_per_s / 1e9,
            "ceiling_kind": self.ceiling.kind,
            "ceiling_date": self.ceiling.date,
            "ceiling_source": self.ceiling.source,
            "step_ms": 1e3 * self.times.measured_s,
            "arithmetic_ms": 1e3 * self.times.compute_s,
            "traffic_min_ms": 1e3 * self.times.memory_min_s,
            "traffic_max_ms": 1e3 * self.times.memory_max_s,
            "step_fused_gb": gigabytes(self.intensity_max),
            "step_eager_gb": gigabytes(self.intensity_min),
            "counted_dram_gb": gigabytes(self.intensity_counted),
            "not_counted_because": (why or None) if looked_at else None,
        }


def roofline_point(
    record: RunRecord,
    ceilings: Sequence[CeilingsRecord],
    profiles: Sequence[ProfileRecord] = (),
    peaks: Sequence[Peaks] = (),
) -> RooflinePoint | Unknown:
    """Place one measured run under its roof, or say why it has no place.

    `profiles` are searched for those that explain the run. `peaks` are datasheet figures of a
    user's own. The step's time is the window's wall time over its iterations, so that nothing
    between them is lost; of a disturbed run it is the median iteration.
    """
    if record.outcome != "ok":
        return Unknown(f"outcome {record.outcome}: {record.reason or 'no reason recorded'}")
    measurement, complexity, config = record.measurement, record.complexity, record.config
    if measurement is None:
        return Unknown("nothing was measured")
    if complexity is None:
        return Unknown(f"no complexity: {record.missing.get('complexity', 'no reason recorded')}")
    if not (complexity.step_flops and complexity.fused_bytes and complexity.eager_bytes):
        return Unknown(f"the complexity model counts no FLOP or no bytes in {complexity.arch}")
    passes, known = config.world_size * config.grad_accum_steps, measurement.samples_per_iteration
    if passes * complexity.batch_size != known and not record.script:
        return Unknown(
            f"the complexity is of {passes} x {complexity.batch_size} {complexity.sample}s per "
            f"iteration, the measurement of {known}"
        )
    used = choose_ceiling(record, ceilings, peaks)
    if isinstance(used, Unknown):
        return Unknown(f"no ceiling: {used.reason}")
    if complexity.fp32_share >= LEAST_IN_FP32 and not used.roof.fp32_flops_per_s:
        return Unknown("a part of its products is in fp32, whose roof is not known")
    if complexity.half_share and not used.roof.half_flops_per_s:
        return Unknown("a part of its products is in bf16, whose roof is not known")
    step_s, waited = measurement.step_s, data_wait_share(measurement, record.ops)
    looked: list[RunRecord | ProfileRecord] = [record, *profiles_of(record, profiles)]
    accounts = [found for one in looked if (found := account_of(one, used.roof, measurement))]
    # The processes of one CPU share that machine's roof.
    on_cpu = record.resolved is not None and record.resolved.backend == "cpu"
    cost = step_cost(complexity, config.grad_accum_steps, config.world_size)
    seen, apart = _counted(record, cost, used, profiled_step(record, step_s, used, profiles))
    by_pace = [Finding.of("by-pace")] if measurement.is_disturbed else []
    return point_under(
        used,
        config.nodes if on_cpu else config.world_size,
        cost,
        step_s,
        None if waited is None else min(waited, 1.0) * step_s,
        seen,
        min(accounts, key=attrgetter("is_disturbed"), default=None),
        notes=[*_of_roof(used), *by_pace, *apart],
    )


#: Of a device's counters, which are refreshed ten times a second: 5 % at the two ends.
_LEAST_COUNTED_S = 2.0
#: Two counters of one step that differ by more are at odds.
_APART = 0.1


def device_count(record: RunRecord, used: UsedCeiling) -> float | Unknown:
    """Return bytes of DRAM of an iteration by the device's own counters, or why none are taken.

    They count everybody's, and are believed where the roof's record proves them on known bytes.
    """
    counted, window = iteration_dram_bytes(record), record.measurement
    if counted is None or window is None or record.telemetry is None:
        return Unknown("the device counted nothing")
    if record.telemetry.foreign_processes:
        return Unknown("the device counted others' bytes too")
    if window.window_s < _LEAST_COUNTED_S:
        return Unknown(f"the device counts windows of {_LEAST_COUNTED_S:g} s and more")
    checks = [one for one in used.counter_checks if (one.counter, one.quantity) == (GPM, "bytes")]
    if not checks:
        return Unknown("no known bytes prove the device's counter: mlproject ceilings does it")
    return next((Unknown(one.sentence) for one in checks if not one.is_right), counted)


def _counted(
    record: RunRecord, cost: StepCost, used: UsedCeiling, seen: ProfiledStep
) -> tuple[ProfiledStep, list[Finding]]:
    """What was seen of the step with the device's own count, and who is at odds with that."""
    counted = device_count(record, used)
    if isinstance(counted, Unknown):
        if iteration_dram_bytes(record) is None:
            return seen, []
        note = Finding.of("not-counted", why=counted.reason)
        return replace(seen, dram_bytes_missing=seen.dram_bytes_missing and note.sentence), [note]
    limit = min(max(counted, cost.compulsory_bytes), cost.eager_bytes)
    others = {"the cost model's limit": (limit, 0.0), "ncu": (seen.dram_bytes or counted, _APART)}
    gb, levels = counted / 1e9, dict[str, Weight](ncu="note")  # it flushes caches before a kernel
    apart = [
        Finding.of("counts-apart", levels.get(who), counted_gb=gb, who=who, other_gb=other / 1e9)
        for who, (other, most_apart) in others.items()
        if abs(counted - other) > most_apart * other
    ]
    own = replace(seen, dram_bytes=round(counted), dram_bytes_missing="", counted_by=GPM)
    return own, apart


def point_under(
    used: UsedCeiling,
    roofs: int,
    cost: StepCost,
    step_s: float,
    data_wait_s: float | None = None,
    seen: ProfiledStep = NOT_SEEN,
    account: StepAccount | None = None,
    *,
    notes: Iterable[Finding],
    what: str = "the run",
) -> RooflinePoint:
    """Return where a step of this cost stands under so many roofs of one device.

    `notes` are those of the roof: the run's own numbers are no worse for them.
    `what` may be wrong of a step that outruns its roof.
    """
    roof = used.roof.of_several(roofs).of_mixture(cost.fp32_share, cost.half_share)
    times = step_times(cost, roof, step_s, data_wait_s, seen.dram_bytes, seen.device_busy_s)
    bound, sure, because = decide_bound(times, account)
    attained, share, executed = cost.flops / step_s, cost.computed_share, seen.executed_flops
    ends = cost.flops / cost.eager_bytes, cost.flops / cost.fused_bytes
    counted = cost.flops / seen.dram_bytes if seen.dram_bytes else None
    attainable_min, attainable_max = (
        roof.attainable_flops_per_s(share * (counted or end)) / share for end in ends
    )
    fraction_min = attained / attainable_max
    findings = list(notes)
    above_peak = share * attained > CEILING_MARGIN * roof.peak_flops_per_s
    if above_peak and share * attained <= CEILING_MARGIN * roof.most_flops_per_s:
        percent = 100 * share * attained / roof.peak_flops_per_s
        findings.append(Finding.of("above-peak", percent=percent))
    if share < 0.995:
        findings.append(Finding.of("causal-mask", percent=100 * (1 - share)))
    return RooflinePoint(
        step_flops=cost.flops,
        attained_flops_per_s=attained,
        intensity_min=ends[0],
        intensity_max=ends[1],
        intensity_counted=counted,
        intensity_counted_missing=seen.dram_bytes_missing,
        counted_by=seen.counted_by if seen.dram_bytes else None,
        traffic_amplification=seen.dram_bytes / cost.fused_bytes if seen.dram_bytes else None,
        executed_per_algorithmic_flop=None if executed is None else executed / cost.flops,
        attainable_min_flops_per_s=attainable_min,
        attainable_max_flops_per_s=attainable_max,
        fraction_of_roof_min=fraction_min,
        fraction_of_roof_max=max(fraction_min, min(1.0, attained / attainable_min)),
        fraction_of_peak=share * attained / roof.peak_flops_per_s,
        mfu_required=ratio(cost.required_flops, step_s * roof.peak_flops_per_s),
        mfu_counted=attained / roof.peak_flops_per_s,
        times=times,
        account=account,
        bound=bound,
        bound_sure=sure,
        bound_because=because,
        roof=roof,
        ceiling=used.ceiling,
        ceiling_record_id=used.record_id,
        findings=(*findings, *check_possible(cost, times, roof, executed, what=what)),
        all_reduces=used.all_reduces,
    )


def _of_roof(used: UsedCeiling) -> Iterator[Finding]:
    """What a report says once a roof."""
    if used.instead_of_measured:
        yield Finding.of("datasheet-roof", why=used.instead_of_measured)
    for doubt in used.doubts:
        yield Finding.of(DOUBTFUL_ROOF, doubt=doubt.sentence)
