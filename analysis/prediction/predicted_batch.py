"""Samples/s at a batch size by a fitted curve, as far as the device's memory holds the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.findings.batches import least_failed_batch
from analysis.prediction.curve import PredictedCurve, fit_curve, least_sample_s, measured_batches
from analysis.runs.groups import Group, cliff_of
from analysis.runs.quantities import three_digits
from analysis.runs.run import Run
from bench.config import Sample, a_sample
from bench.errors import UserError
from bench.records import RunRecord

#: The driver, the context and fragmentation need the rest.
USABLE_SHARE = 0.95


@dataclass(frozen=True)
class MemoryModel:
    """Bytes of a step and of the device: need(b) = fixed + per_sample * b.

    Weights, gradients and optimizer state are needed once, activations for each sample. Measured
    peaks of two batch sizes or more give both terms, workspaces included. With one, or none, the
    model of the records' complexity does, raised to the one measured peak where that is higher;
    `source` says which.
    """

    fixed_bytes: float
    bytes_per_sample: float
    device_bytes: int
    source: str

    def need_bytes(self, batch_size: int) -> float:
        """Return what a step of `batch_size` needs."""
        return self.fixed_bytes + self.bytes_per_sample * batch_size

    @property
    def largest_batch(self) -> int:
        """The largest batch that fits into 95 % of the device's memory."""
        room = USABLE_SHARE * self.device_bytes - self.fixed_bytes
        return max(int(room // self.bytes_per_sample), 0)


def memory_of(curve: Sequence[Group]) -> MemoryModel | str:
    """Return the memory model of a curve, or why there is none."""
    records = [run.record for group in curve for run in group.runs if run.record]
    if not records:
        return "imported runs do not tell how much memory they used, or what the device has"
    totals = {total for record in records if (total := _device_bytes(record))}
    if not totals:
        return "the device's memory is not recorded"
    peaks = _peaks(records)
    if len(peaks) > 1:
        sizes, needs = np.array(sorted(peaks.items()), dtype=float).T
        per_sample, fixed = np.polyfit(sizes, needs, 1)
        if per_sample > 0:
            return MemoryModel(max(fixed, 0.0), per_sample, min(totals), "measured peaks")
    sample = curve[0].sample
    modelled = next((one for one in map(_modelled, records) if one is not None), None)
    if modelled is None:
        return (
            f"neither peaks of two batch sizes nor a cost model tell what {a_sample(sample)} needs"
        )
    fixed, per_sample = modelled
    batch, peak = max(peaks.items(), default=(1, 0.0))
    raised = max(1.0, peak / (fixed + per_sample * batch))
    source = "the cost model" if raised == 1 else "the cost model, raised to the measured peak"
    return MemoryModel(fixed * raised, per_sample * raised, min(totals), source)


def _device_bytes(record: RunRecord) -> int | None:
    environment = record.environment
    if environment is None:
        return None
    device = environment.device
    return environment.memory_bytes if device.backend == "cpu" else device.memory_bytes


def _peaks(records: Sequence[RunRecord]) -> dict[int, float]:
    """The highest measured peak by batch size."""
    found: dict[int, float] = {}
    for record in records:
        measurement, resolved = record.measurement, record.resolved
        if measurement is None or resolved is None:
            continue
        peak = measurement.peak_memory_reserved_bytes or measurement.peak_memory_allocated_bytes
        if peak:
            found[resolved.batch_size] = max(found.get(resolved.batch_size, 0.0), float(peak))
    return found


def _modelled(record: RunRecord) -> tuple[float, float] | None:
    complexity = record.complexity
    if complexity is None or not complexity.memory.activations_bytes:
        return None
    memory = complexity.memory
    fixed = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    return float(fixed), memory.activations_bytes / complexity.batch_size


#: Two terms are a fair model between measured sizes and near them, and a guess far from them.
MOST_BEYOND = 4


@dataclass(frozen=True)
class Prediction:
    """Samples/s at a batch size with its interval, the curve that it comes from, and its memory."""

    batch_size: int
    samples_per_s: float
    low: float
    high: float
    curve: PredictedCurve
    memory: str  # why the batch fits
    label: str
    sample: Sample


def predict_batch(curve: Sequence[Group], batch_size: int, runs: Sequence[Run] = ()) -> Prediction:
    """Predict a batch size from a curve (smallest batch first).

    `runs` are searched for those of the same configuration that ran out of memory. Raises
    `UserError`, with the reason, for too few sizes, for a batch that memory does not hold or may
    not hold, and for one too far from what was measured.
    """
    measured = measured_batches(curve)
    fitted = fit_curve(measured, least_sample_s(curve[: len(measured)]))
    sizes = [one.batch_size for one in measured]
    why_it_fits = _fits(curve, batch_size, sizes, runs)
    if not min(sizes) / MOST_BEYOND <= batch_size <= max(sizes) * MOST_BEYOND:
        raise UserError(
            f"batch_size={batch_size}: more than {MOST_BEYOND} times beyond what was measured "
            f"({min(sizes)} to {max(sizes)}): measure a batch nearer to it"
        )
    value, low, high = fitted.samples_per_s(batch_size)
    return Prediction(
        batch_size, value, low, high, fitted, why_it_fits, curve[0].series, curve[0].sample
    )


def _fits(
    curve: Sequence[Group], batch_size: int, sizes: Sequence[int], runs: Sequence[Run]
) -> str:
    """Return why the batch fits into memory; raises `UserError` where it does not or may not."""
    largest = max(sizes)
    if batch_size <= largest:
        return f"batch {largest} was measured, so a smaller one fits"
    place = cliff_of(curve)
    if place is not None:
        spilled = curve[place]
        raise UserError(
            f"batch_size={batch_size}: batch {spilled.batch_size} fell to "
            f"{three_digits(spilled.samples_per_s)} {spilled.rate_unit}, where memory spilled; "
            f"predictions end at {largest}"
        )
    failed = least_failed_batch(curve[0], runs, largest)
    if failed is not None and batch_size >= failed[0]:
        raise UserError(
            f"batch_size={batch_size}: batch {failed[0]} ran out of memory "
            f"(run {failed[1].name}); predictions end below it"
        )
    memory = memory_of(curve)
    if isinstance(memory, str):
        raise UserError(
            f"batch_size={batch_size}: beyond the measured {largest}, and {memory}; "
            "measure it, or ask for a batch within"
        )
    need_gb, total_gb = memory.need_bytes(batch_size) / 1e9, memory.device_bytes / 1e9
    if batch_size > memory.largest_batch:
        raise UserError(
            f"batch_size={batch_size}: needs {three_digits(need_gb)} GB by {memory.source}, the "
            f"device has {three_digits(total_gb)} GB; at most {memory.largest_batch} fits"
        )
    return f"{three_digits(need_gb)} of {three_digits(total_gb)} GB by {memory.source}"
