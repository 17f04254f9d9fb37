"""What one iteration of a run did: its FLOP, its bytes by three counts, and its time."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.bounds import StepTimes
from analysis.roof import Roof
from bench.records import Complexity, RunRecord
from bench.summary import data_wait_share


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

    def times_under(self, roof: Roof) -> StepTimes:
        """Return the measured times beside those that `roof` asks for."""
        return StepTimes(
            measured_s=self.step_s,
            data_wait_s=self.data_wait_s,
            compute_s=self.flops / roof.peak_flops_per_s,
            memory_min_s=self.fused_bytes / roof.peak_bytes_per_s,
            memory_max_s=self.eager_bytes / roof.peak_bytes_per_s,
        )


def step_work(record: RunRecord) -> StepWork | str:
    """Return the work of one iteration of `record`, or why it is not known.

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
    batches = record.config.grad_accum_steps
    if batches * complexity.batch_size != measurement.images_per_iteration:
        return (
            f"the complexity is of {batches} x {complexity.batch_size} images per iteration, "
            f"the measurement of {measurement.images_per_iteration}"
        )
    step_s = measurement.window_s / len(measurement.iteration_times_s)
    return StepWork(
        flops=batches * complexity.step_flops,
        fused_bytes=_bytes(complexity, "fused_bytes", batches),
        eager_bytes=_bytes(complexity, "eager_bytes", batches),
        # Of one batch, however many there were: a floor that stays a floor.
        compulsory_bytes=complexity.compulsory_bytes,
        step_s=step_s,
        data_wait_s=min(data_wait_share(measurement), 1.0) * step_s,
    )


def _bytes(complexity: Complexity, field: str, batches: int) -> float:
    """Bytes of `batches` forward and backward passes and one optimizer step."""
    once: int = getattr(complexity, field)
    per_batch: int = sum(getattr(op, field) for op in complexity.ops if op.phase != "optimizer")
    return once + (batches - 1) * per_batch
