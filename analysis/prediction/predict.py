"""One prediction, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.findings.batches import cliff_of
from analysis.prediction.curve import PredictedCurve, fit_curve, least_image_s, measured_batches
from analysis.prediction.memory_model import failed_batches, memory_of
from analysis.runs.groups import Group
from analysis.runs.placed import Run
from analysis.runs.quantities import three_digits
from bench.errors import UserError

#: Two terms are a fair model between measured sizes and near them, and a guess far from them.
MOST_BEYOND = 4


@dataclass(frozen=True)
class Prediction:
    """Images/s at a batch size with its interval, the curve that it comes from, and its memory."""

    batch_size: int
    images_per_s: float
    low: float
    high: float
    curve: PredictedCurve
    memory: str  # why the batch fits
    label: str

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids of all runs that the model was fitted to."""
        return tuple(name for one in self.curve.measured for name in one.runs)


def predict_batch(curve: Sequence[Group], batch_size: int, runs: Sequence[Run] = ()) -> Prediction:
    """Predict a batch size from a curve (smallest batch first).

    `runs` are searched for those of the same configuration that ran out of memory. Raises
    `UserError`, with the reason, for too few sizes, for a batch that memory does not hold or may
    not hold, and for one too far from what was measured.
    """
    measured = measured_batches(curve)
    fitted = fit_curve(measured, least_image_s(curve[: len(measured)]))
    sizes = [one.batch_size for one in measured]
    why_it_fits = _fits(curve, batch_size, sizes, runs)
    if not min(sizes) / MOST_BEYOND <= batch_size <= max(sizes) * MOST_BEYOND:
        raise UserError(
            f"batch_size={batch_size}: more than {MOST_BEYOND} times beyond what was measured "
            f"({min(sizes)} to {max(sizes)}): measure a batch nearer to it"
        )
    value, low, high = fitted.images_per_s(batch_size)
    first = curve[0].first
    label = f"{first.env} {first.arch} {first.precision}"
    return Prediction(batch_size, value, low, high, fitted, why_it_fits, label)


def _fits(
    curve: Sequence[Group], batch_size: int, sizes: Sequence[int], runs: Sequence[Run]
) -> str:
    """Return why the batch fits into memory; raises `UserError` where it does not or may not."""
    largest = max(sizes)
    if batch_size <= largest:
        return f"batch {largest} was measured, so a smaller one fits"
    place = cliff_of(curve)
    if place is not None and batch_size > largest:
        spilled = curve[place]
        raise UserError(
            f"batch_size={batch_size}: batch {spilled.batch_size} fell to "
            f"{three_digits(spilled.throughput_images_per_s)} images/s, where memory spilled; "
            f"predictions end at {largest}"
        )
    failed = failed_batches(curve, runs)
    if failed and batch_size >= (failed[0].batch_size or 0):
        raise UserError(
            f"batch_size={batch_size}: batch {failed[0].batch_size} ran out of memory "
            f"(run {failed[0].name}); predictions end below it"
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
