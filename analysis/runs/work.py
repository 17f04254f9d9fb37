"""What one iteration of a run did: its FLOP, its bytes by three counts, and its time."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.roofs.roof import Roof
from analysis.runs.bounds import StepTimes
from bench.records import RunRecord
from bench.records.verdict.summary import data_wait_share, step_cost


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
