"""What one iteration of a run did: FLOP, bytes by three counts and time, and whether it can be."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.roofs.roof import CEILING_MARGIN, Roof
from analysis.runs.bounds import StepTimes
from bench.records import Finding, RunRecord
from bench.records.verdict.record_metrics import data_wait_share, step_cost


@dataclass(frozen=True)
class StepWork:
    """Work and time of one iteration (one optimizer step, however many batches it took)."""

    flops: float
    fused_bytes: float
    eager_bytes: float
    compulsory_bytes: float
    step_s: float
    data_wait_s: float

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
            compute_s=self.flops / roof.peak_flops_per_s,
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
    if ranks * batches * complexity.batch_size != measurement.images_per_iteration:
        return (
            f"the complexity is of {ranks * batches} x {complexity.batch_size} images per "
            f"iteration, the measurement of {measurement.images_per_iteration}"
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
    )


def check_possible(
    work: StepWork, times: StepTimes, roof: Roof, executed_flops: float | None = None
) -> tuple[Finding, ...]:
    """Return findings for a step that outruns its roof by more than 3 %.

    Arithmetic is what was executed, where counters say it: Winograd's needs less than the
    algorithm. Against the memory roof only the compulsory bytes are impossible: a cache can keep
    small tensors out of DRAM. Outrunning the fused bytes is suspect.
    """
    findings: list[Finding] = []
    flops = work.flops if executed_flops is None else executed_flops
    compute_s = flops / roof.peak_flops_per_s
    if compute_s > CEILING_MARGIN * times.measured_s:
        percent = 100 * compute_s / times.measured_s
        findings.append(_invalid("above-compute-roof", "compute", percent))
    compulsory_s = work.compulsory_bytes / roof.peak_bytes_per_s
    if compulsory_s > CEILING_MARGIN * times.measured_s:
        percent = 100 * compulsory_s / times.measured_s
        findings.append(_invalid("above-memory-roof", "memory", percent))
    elif times.memory_min_s > CEILING_MARGIN * times.measured_s:
        percent = 100 * times.memory_min_s / times.measured_s
        message = (
            f"its fused bytes alone would take {percent:.0f} % of the step: "
            "a cache kept many of them, or the model counts too many"
        )
        findings.append(Finding(code="below-fused-traffic", level="suspect", message=message))
    return tuple(findings)


def _invalid(code: str, which: str, percent: float) -> Finding:
    message = (
        f"{percent:.0f} % of the {which} ceiling: impossible; "
        "the run, its work count or the ceiling is wrong"
    )
    return Finding(code=code, level="invalid", message=message)
