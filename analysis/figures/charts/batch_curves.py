"""What runs have over batch size: throughput, scaling, efficiency, intensity, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from analysis.figures.charts.measured_words import group_hover
from analysis.runs.groups import Group, batch_curves
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import flops_rate, interval, percent, three_digits
from analysis.runs.run import Run
from bench.config import Sample


@dataclass(frozen=True)
class Curve:
    """One quantity over batch size; `lows` and `highs` are the ends of its spread, if it has any.

    `open` markers are of modelled values, filled ones of measured. `hover` has the words about each
    batch size.
    """

    arch: str
    precision: str
    env: str
    batches: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float | None, ...] = ()
    highs: tuple[float | None, ...] = ()
    hover: tuple[tuple[str, ...], ...] = ()
    open: bool = False
    sample: Sample = "image"  # what a batch has that many of
    distinction: str = ""  # what else distinguishes it from a curve of its model and precision

    @property
    def key(self) -> tuple[str, ...]:
        """What the curve is of."""
        return self.env, self.arch, self.precision, self.distinction


class _Value(NamedTuple):
    """A quantity as a number and in words, with both ends of its spread, None where it has none."""

    value: float
    words: str = ""
    low: float | None = None
    high: float | None = None


def throughput_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return samples/s with one standard deviation between repeats to either side."""
    return _curves(runs, lambda group, _: _rate(group))


def scaling_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return samples/s over those of the smallest batch; curves of one batch size have none."""
    return [curve for curve in _curves(runs, _gain) if len(curve.batches) > 1]


def efficiency_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return the share of the compute peak that each batch size reached, by placed runs."""
    return _curves(runs, lambda group, _: _of_point(group, _efficiency))


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
            (group, value) for group in groups if (value := value_of(group, groups[0])) is not None
        ]
        if known:
            first = groups[0].first
            curve = Curve(
                first.arch,
                first.precision,
                first.env,
                tuple(group.batch_size or 0 for group, _ in known),
                tuple(value.value for _, value in known),
                tuple(value.low for _, value in known),
                tuple(value.high for _, value in known),
                tuple(
                    group_hover(group, *([value.words] if value.words else []))
                    for group, value in known
                ),
                sample=first.sample,
                distinction=first.distinction,
            )
            found.append(curve)
    return found


def _rate(group: Group, words: str = "", factor: float = 1.0) -> _Value:
    deviation, rate = group.repeats().relative_deviation, factor * group.samples_per_s
    if deviation is None:
        return _Value(rate, words)
    return _Value(rate, words, rate * max(1 - deviation, 0.0), rate * (1 + deviation))


def _gain(group: Group, smallest: Group) -> _Value:
    base = smallest.samples_per_s
    ratio = three_digits(group.samples_per_s / base)
    return _rate(
        group, f"{ratio} times the {group.rate_unit} of batch {smallest.batch_size}", 1 / base
    )


def _of_point(group: Group, value: Callable[[RooflinePoint], _Value]) -> _Value | None:
    return next((value(run.point) for run in group.runs if run.point), None)


def _efficiency(point: RooflinePoint) -> _Value:
    attained = flops_rate(point.attained_flops_per_s)
    share = percent(point.fraction_of_peak)
    return _Value(point.fraction_of_peak, f"{attained}, {share} of the compute peak")


def _intensity(point: RooflinePoint) -> _Value:
    counted = point.intensity_counted
    if counted is not None:
        return _Value(counted, f"{three_digits(counted)} FLOP/byte, counted")
    low, high = point.intensity_min, point.intensity_max
    words = f"{interval(low, high)} FLOP/byte, modelled (eager to fused bytes)"
    return _Value(float((low * high) ** 0.5), words, low, high)


def _peak_gb(group: Group) -> _Value | None:
    peaks = [run.metrics["peak_memory_mb"] for run in group.runs if "peak_memory_mb" in run.metrics]
    if not peaks:
        return None
    peak_gb = max(peaks) / 1e3
    return _Value(peak_gb, f"{three_digits(peak_gb)} GB at its peak, measured")


def _modelled_gb(group: Group) -> _Value | None:
    complexity = group.first.record.complexity if group.first.record else None
    if complexity is None:
        return None
    memory = complexity.memory
    needed = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    needed_gb = (needed + memory.activations_bytes) / 1e9
    return _Value(needed_gb, f"{three_digits(needed_gb)} GB by the cost model")
