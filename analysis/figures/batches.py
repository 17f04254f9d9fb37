"""Quantities over batch size: a line per model and precision of one machine, with their spread.

Colour is the model, the marker the precision; a filled marker was measured, an open one modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from analysis.figures.chart import (
    Axis,
    Band,
    Chart,
    Panel,
    Series,
    hover,
    key,
    model_key,
    model_legend,
    rule,
)
from analysis.figures.rows import group_hover
from analysis.prediction import PredictedCurve
from analysis.runs.frame import Row, point_row
from analysis.runs.groups import Group, batch_curves
from analysis.runs.run import Run
from analysis.words import percent
from bench.config import common_sample, rate_column

_MAX_TICKS = 7


class Value(NamedTuple):
    """A quantity of one batch size, what hovering adds to it, and both ends of its spread."""

    value: float
    facts: Row
    low: float | None = None
    high: float | None = None
    modelled: bool = False


#: The value of a batch size, given the groups of its curve, smallest first.
Quantity = Callable[[Group, Sequence[Group]], "Value | None"]


@dataclass(frozen=True)
class Curve:
    """A quantity of the `groups` of one configuration over their batch sizes, smallest first."""

    groups: tuple[Group, ...]
    values: tuple[Value, ...]

    @property
    def of(self) -> Run:
        """A run with the settings that all share."""
        return self.groups[0].first

    @property
    def modelled(self) -> bool:
        """Whether any of its values is modelled: its markers are open."""
        return any(value.modelled for value in self.values)

    @property
    def heights(self) -> list[float]:
        """All values and ends of spreads."""
        ends = [end for value in self.values for end in (value.value, value.low, value.high)]
        return [end for end in ends if end is not None]


def curves_of(runs: Iterable[Run], *quantities: Quantity) -> list[Curve]:
    """Return of each curve the first of `quantities` that any of its batch sizes has."""
    found = []
    for groups in batch_curves(runs):
        for quantity in quantities:
            known = [(one, value) for one in groups if (value := quantity(one, groups))]
            if known:
                found.append(Curve(*(tuple(part) for part in zip(*known, strict=True))))
                break
    return found


def throughput(group: Group, _: Sequence[Group]) -> Value:
    """Return samples/s with one standard deviation between repeats to either side."""
    deviation, rate = group.repeats().relative_deviation, group.samples_per_s
    if deviation is None:
        return Value(rate, {})
    return Value(rate, {}, rate * max(1 - deviation, 0.0), rate * (1 + deviation))


def gain(group: Group, curve: Sequence[Group]) -> Value | None:
    """Return samples/s over those of the smallest batch; a single batch size has no gain."""
    if len(curve) < 2:
        return None
    value, smallest = throughput(group, curve), curve[0].samples_per_s
    low, high = (None if end is None else end / smallest for end in (value.low, value.high))
    ratio = value.value / smallest
    return Value(ratio, {"ratio_to_smallest": ratio}, low, high)


def efficiency(group: Group, _: Sequence[Group]) -> Value | None:
    """Return the share of the compute peak, of a run that has a place under its roof."""
    return next((Value(one.fraction_of_peak, point_row(one)) for one in group.points), None)


def intensity(group: Group, _: Sequence[Group]) -> Value | None:
    """Return FLOP/byte: counted, else the modelled interval around its geometric middle."""
    if not group.points:
        return None
    row = point_row(group.points[0])
    low, high, counted = (row[f"intensity_{end}"] for end in ("min", "max", "counted"))
    if counted is not None:
        return Value(counted, row)
    return Value((low * high) ** 0.5, row, low, high, modelled=True)


def peak_memory_gb(group: Group, _: Sequence[Group]) -> Value | None:
    """Return the measured peak memory in GB."""
    name = "peak_memory_mb"
    peaks_mb = [run.metrics[name] for run in group.runs if name in run.metrics]
    return Value(max(peaks_mb) / 1e3, {name: max(peaks_mb)}) if peaks_mb else None


def modelled_memory_gb(group: Group, _: Sequence[Group]) -> Value | None:
    """Return the cost model's weights, gradients, optimizer state and activations in GB."""
    complexity = group.first.record.complexity if group.first.record else None
    if complexity is None:
        return None
    memory = complexity.memory
    needed = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    needed_gb = (needed + memory.activations_bytes) / 1e9
    return Value(needed_gb, {"modelled_gb": needed_gb}, modelled=True)


def device_memory_gb(runs: Iterable[Run]) -> dict[str, float]:
    """Return the device's memory of each machine in GB, as far as its runs have it."""
    found: dict[str, float] = {}
    for run in runs:
        environment = run.record.environment if run.record else None
        if environment is not None and environment.device.memory_bytes:
            found[run.env] = environment.device.memory_bytes / 1e9
    return found


def batch_chart(
    curves: Sequence[Curve],
    label: str,
    *,
    colours: Mapping[str, str],
    logarithmic: bool | None = None,
    limit: tuple[float, str] | None = None,
) -> Chart:
    """Return curves over batch size; `logarithmic` by default where they span widely.

    `limit` is a value that none can pass, with its words; it is left out where all are far from it.
    """
    # a crowd is drawn smaller and half transparent, so that it shows its density
    crowded = sum(len(curve.groups) for curve in curves) > 60
    x = _batch_axis([group for curve in curves for group in curve.groups])
    y = _height_axis(label, curves, spans_widely(curves) if logarithmic is None else logarithmic)
    series = [_series(curve, colours, crowded) for curve in curves]
    legend = model_legend(series)
    if limit is not None and limit[0] < 3 * y.limits[1]:
        value, words = limit
        y = replace(y, limits=(y.limits[0], max(y.limits[1], 1.1 * value)))
        series.append(rule(x.limits, (value, value), "#222222", words, dashed=True))
    empty = "" if curves else "no batch sizes to draw"
    panel = Panel(x=x, y=y, series=tuple(series), empty=empty, legend=legend)
    # half a page wide, with three entries of the legend in a row
    return Chart((panel,), 3.6, 2.7 + 0.16 * -(-len(legend) // 3))


def spans_widely(curves: Iterable[Curve]) -> bool:
    """Whether the curves' positive values span a factor over 8, which asks for a log axis."""
    positive = [height for curve in curves for height in curve.heights if height > 0]
    return bool(positive) and max(positive) / min(positive) > 8


def _series(curve: Curve, colours: Mapping[str, str], crowded: bool) -> Series:
    of, values = curve.of, curve.values
    return model_key(
        of,
        colours,
        xs=tuple(group.batch_size or 0 for group in curve.groups),
        ys=tuple(value.value for value in values),
        lows=tuple(value.low for value in values),
        highs=tuple(value.high for value in values),
        size_pt=2.5 if crowded else 4.0,
        filled=not curve.modelled,
        line_pt=0.8 if crowded else 1.4,
        opacity=0.6 if crowded else 1.0,
        names=(*[""] * (len(values) - 1), of.distinction),
        hover=tuple(
            group_hover(one, value.facts) for one, value in zip(curve.groups, values, strict=True)
        ),
    )


def _batch_axis(groups: Sequence[Group]) -> Axis:
    """As many sizes as have room for their labels, the smallest and the largest among them."""
    sizes = sorted({group.batch_size or 0 for group in groups}) or [1]
    step = max(1.0, (len(sizes) - 1) / (_MAX_TICKS - 1))
    ticks = sorted({sizes[round(index * step)] for index in range(min(len(sizes), _MAX_TICKS))})
    return Axis(
        label=f"Batch size ({common_sample(group.sample for group in groups)}s)",
        limits=(sizes[0] / 1.3, sizes[-1] * 1.3),
        scale="log2",
        ticks=tuple(ticks),
    )


def _height_axis(label: str, curves: Iterable[Curve], logarithmic: bool) -> Axis:
    values = [height for curve in curves for height in curve.heights]
    if not logarithmic:
        return Axis(label=label, limits=(0.0, 1.12 * max([*values, 1e-9])))
    positive = [value for value in values if value > 0]
    limits = min(positive, default=1.0) / 1.4, max(positive, default=10.0) * 1.4
    return Axis(label=label, limits=limits, scale="log")


def prediction_panel(curve: PredictedCurve, label: str, colour: str = "#0072B2") -> Panel:
    """Return measured batch sizes, the model between them and its 95 % interval."""
    groups, rate = curve.measured, rate_column(curve.measured[0].sample)
    sizes = tuple(one.batch_size or 0 for one in groups)
    rates = tuple(one.samples_per_s for one in groups)
    between = np.unique(np.geomspace(min(sizes), max(sizes), 60).round())
    batches = tuple(int(batch) for batch in between)
    values = tuple(map(curve.model.samples_per_s, batches))
    lows, highs = zip(*map(curve.interval, batches), strict=True)
    words = (
        hover(f"{label} batch {batch}, predicted", {rate: value, f"{rate}_low": low,
              f"{rate}_high": high}, "rate rate_interval", groups[0].sample)
        for batch, value, low, high in zip(batches, values, lows, highs, strict=True)
    )  # fmt: skip
    model, measured = key("model", "#222222", line_pt=1.1), key("measured", colour, "circle")
    hovers = tuple(map(group_hover, groups))
    return Panel(
        x=_batch_axis(groups),
        y=Axis(label=groups[0].first.rate_unit.capitalize(), limits=(0.0, 1.5 * max(rates))),
        series=(
            replace(model, xs=batches, ys=values, hover=tuple(words)),
            replace(measured, xs=sizes, ys=rates, hover=hovers),
        ),
        bands=(Band(batches, lows, highs, "#999999", "95 % interval"),),
        title=f"{label}: held out, missed by {percent(curve.held_out_error)}",
        legend=(measured, model),
    )
