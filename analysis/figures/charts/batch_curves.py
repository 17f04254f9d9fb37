"""What runs have over batch size: throughput, scaling, efficiency, intensity, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from analysis.figures.charts.curves import Curve
from analysis.runs.groups import Group, batch_curves
from analysis.runs.placed import Run
from analysis.runs.points import RooflinePoint

#: A value with both ends of its spread, None where there is none.
_Value = tuple[float, float | None, float | None]


def throughput_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return images/s with one standard deviation between repeats to either side."""
    return _curves(runs, lambda group, _: _rate(group, 1.0))


def scaling_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return images/s over those of the smallest batch; curves of one batch size have none."""
    curves = _curves(
        runs, lambda group, smallest: _rate(group, 1 / smallest.throughput_images_per_s)
    )
    return [curve for curve in curves if len(curve.batches) > 1]


def efficiency_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return the share of the compute peak that each batch size reached, by placed runs."""
    return _curves(
        runs, lambda group, _: _of_point(group, lambda point: (point.fraction_of_peak, None, None))
    )


def intensity_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return FLOP/byte: counted ones as points, modelled ones as intervals with open markers.

    The marker of an interval stands at its geometric middle, which was not measured: it is open.
    """
    curves = _curves(runs, lambda group, _: _of_point(group, _intensity))
    return [replace(one, open=any(low is not None for low in one.lows)) for one in curves]


def memory_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return the measured peak memory in GB of each batch size."""
    return _curves(runs, lambda group, _: _peak_gb(group))


def modelled_memory_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return the cost model's weights, gradients, optimizer state and activations in GB."""
    return [replace(one, open=True) for one in _curves(runs, lambda group, _: _modelled_gb(group))]


def device_memory_gb(runs: Iterable[Run]) -> dict[str, float]:
    """Return the device's memory of each machine, as far as its runs have it."""
    found: dict[str, float] = {}
    for run in runs:
        environment = run.record.environment if run.record else None
        if environment is not None and environment.device.memory_bytes:
            found[run.env] = environment.device.memory_bytes / 1e9
    return found


def _curves(runs: Iterable[Run], value_of: Callable[[Group, Group], _Value | None]) -> list[Curve]:
    """The curves that have a value; `value_of` takes a batch size's group and the smallest's."""
    found = []
    for groups in batch_curves(runs):
        known = [
            (group.batch_size or 0, *value)
            for group in groups
            if (value := value_of(group, groups[0])) is not None
        ]
        if known:
            first = groups[0].first
            batches, values, lows, highs = zip(*known, strict=True)
            settings = first.arch, first.precision, first.env
            curve = Curve(*settings, batches, values, lows, highs, distinction=first.distinction)
            found.append(curve)
    return found


def _rate(group: Group, factor: float) -> _Value:
    deviation, rate = group.repeats().relative_deviation, factor * group.throughput_images_per_s
    if deviation is None:
        return rate, None, None
    return rate, rate * max(1 - deviation, 0.0), rate * (1 + deviation)


def _of_point(group: Group, value: Callable[[RooflinePoint], _Value]) -> _Value | None:
    return next((value(run.point) for run in group.runs if run.point), None)


def _intensity(point: RooflinePoint) -> _Value:
    if point.intensity_counted is not None:
        return point.intensity_counted, None, None
    low, high = point.intensity_min, point.intensity_max
    return float((low * high) ** 0.5), low, high


def _peak_gb(group: Group) -> _Value | None:
    peaks = [run.metrics["peak_memory_mb"] for run in group.runs if "peak_memory_mb" in run.metrics]
    return (max(peaks) / 1e3, None, None) if peaks else None


def _modelled_gb(group: Group) -> _Value | None:
    complexity = group.first.record.complexity if group.first.record else None
    if complexity is None:
        return None
    memory = complexity.memory
    needed = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    return (needed + memory.activations_bytes) / 1e9, None, None
