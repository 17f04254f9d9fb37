"""What runs have over batch size: throughput, scaling, efficiency, intensity, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from analysis.figures.curves import Curve
from analysis.runs.groups import Group, batch_curves
from analysis.runs.placed import Run
from analysis.runs.points import RooflinePoint


def throughput_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return images/s with one standard deviation between repeats to either side."""
    return [_throughput(curve, 1.0) for curve in batch_curves(runs)]


def scaling_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return images/s over those of the smallest batch; curves of one batch size have none."""
    return [
        _throughput(curve, 1 / curve[0].throughput_images_per_s)
        for curve in batch_curves(runs)
        if len(curve) > 1
    ]


def efficiency_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return the share of the compute peak that each batch size reached, by placed runs."""
    return list(_point_curves(runs, lambda p: p.fraction_of_peak, None))


def intensity_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return FLOP/byte: counted ones as points, modelled ones as intervals with open markers.

    The marker of an interval stands at its geometric middle, which was not measured: it is open.
    """
    return list(_point_curves(runs, _middle, _ends))


def memory_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return the measured peak memory in GB of each batch size."""
    found = []
    for curve in batch_curves(runs):
        peaks = [(group.batch_size or 0, peak) for group in curve if (peak := _peak_gb(group))]
        if peaks:
            found.append(_curve(curve[0], [b for b, _ in peaks], [peak for _, peak in peaks]))
    return found


def modelled_memory_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return the cost model's weights, gradients, optimizer state and activations in GB."""
    found = []
    for curve in batch_curves(runs):
        needs = [(group.batch_size or 0, need) for group in curve if (need := _modelled_gb(group))]
        if needs:
            first, batches = curve[0], [batch for batch, _ in needs]
            found.append(_curve(first, batches, [need for _, need in needs], is_open=True))
    return found


def device_memory_gb(runs: Iterable[Run]) -> dict[str, float]:
    """Return the device's memory of each machine, as far as its runs have it."""
    found: dict[str, float] = {}
    for run in runs:
        environment = run.record.environment if run.record else None
        if environment is not None and environment.device.memory_bytes:
            found[run.env] = environment.device.memory_bytes / 1e9
    return found


def _throughput(curve: Sequence[Group], factor: float) -> Curve:
    lows: list[float | None] = []
    highs: list[float | None] = []
    for group in curve:
        deviation = group.repeats().relative_deviation
        rate = factor * group.throughput_images_per_s
        lows.append(None if deviation is None else rate * max(1 - deviation, 0.0))
        highs.append(None if deviation is None else rate * (1 + deviation))
    values = [factor * group.throughput_images_per_s for group in curve]
    return _curve(curve[0], [group.batch_size or 0 for group in curve], values, lows, highs)


def _curve(
    group: Group,
    batches: Sequence[int],
    values: Sequence[float],
    lows: Sequence[float | None] = (),
    highs: Sequence[float | None] = (),
    *,
    is_open: bool = False,
) -> Curve:
    first = group.first
    return Curve(
        first.arch,
        first.precision,
        first.env,
        tuple(batches),
        tuple(values),
        tuple(lows),
        tuple(highs),
        is_open,
    )


def _point_curves(
    runs: Iterable[Run],
    value: Callable[[RooflinePoint], float],
    ends: Callable[[RooflinePoint], tuple[float | None, float | None]] | None,
) -> Iterator[Curve]:
    for curve in batch_curves(runs):
        placed = [
            (group.batch_size or 0, point)
            for group in curve
            if (point := _point(group)) is not None
        ]
        if placed:
            points = [point for _, point in placed]
            spans = [ends(point) for point in points] if ends else []
            yield _curve(
                curve[0],
                [batch for batch, _ in placed],
                [value(point) for point in points],
                [low for low, _ in spans],
                [high for _, high in spans],
                is_open=bool(ends) and any(p.intensity_counted is None for p in points),
            )


def _middle(point: RooflinePoint) -> float:
    if point.intensity_counted is not None:
        return point.intensity_counted
    return float((point.intensity_min * point.intensity_max) ** 0.5)


def _ends(point: RooflinePoint) -> tuple[float | None, float | None]:
    if point.intensity_counted is not None:
        return None, None
    return point.intensity_min, point.intensity_max


def _point(group: Group) -> RooflinePoint | None:
    return next((run.point for run in group.runs if run.point), None)


def _peak_gb(group: Group) -> float | None:
    peaks = [run.metrics["peak_memory_mb"] for run in group.runs if "peak_memory_mb" in run.metrics]
    return max(peaks) / 1e3 if peaks else None


def _modelled_gb(group: Group) -> float | None:
    complexity = group.first.record.complexity if group.first.record else None
    if complexity is None:
        return None
    memory = complexity.memory
    return (
        memory.weights_bytes
        + memory.gradients_bytes
        + memory.optimizer_bytes
        + memory.activations_bytes
    ) / 1e9
