"""Charts over batch size, with a line for each configuration.

Colour is the model, the marker the precision; a filled marker was measured, an open one modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from analysis.figures.chart import Axis, Chart, Marks, Panel, log_axis, model_key, model_legend
from analysis.figures.rows import group_hover
from analysis.presentation.columns import Row
from analysis.presentation.table import grouped
from analysis.runs.groups import Group, Runs, sample_of
from bench.config import common_sample, rate_unit

_MAX_TICKS = 7
#: More points are drawn smaller and half transparent, so that a crowd shows its density.
_CROWD = 60
#: Positive values that span more than this factor ask for a logarithmic axis.
_WIDE = 8


class Value(NamedTuple):
    """A quantity of one batch size, what hovering adds to it, and both ends of its spread."""

    value: float
    facts: Row
    low: float | None = None
    high: float | None = None
    modelled: bool = False

    @property
    def heights(self) -> list[float]:
        """The value and the ends that it has."""
        return [end for end in (self.value, self.low, self.high) if end is not None]


#: A quantity of one configuration by its groups, smallest batch first.
Curve = list[tuple[Group, Value]]
#: The value of a batch size, given the groups of its curve, smallest first.
Quantity = Callable[[Group, Sequence[Group]], Value | None]


def _throughput(group: Group, _: Sequence[Group]) -> Value:
    """Samples/s with one standard deviation between repeats to either side."""
    deviation, rate = group.repeats().relative_deviation, group.samples_per_s
    if deviation is None:
        return Value(rate, {})
    return Value(rate, {}, rate * max(1 - deviation, 0.0), rate * (1 + deviation))


def _gain(group: Group, curve: Sequence[Group]) -> Value | None:
    """Samples/s over those of the smallest batch; a single batch size has no gain."""
    if len(curve) < 2:
        return None
    value, smallest = _throughput(group, curve), curve[0].samples_per_s
    low, high = (None if end is None else end / smallest for end in (value.low, value.high))
    ratio = value.value / smallest
    return Value(ratio, {"ratio_to_smallest": ratio}, low, high)


def _efficiency(group: Group, _: Sequence[Group]) -> Value | None:
    """The share of the compute peak, of a run that has a place under its roof."""
    return next((Value(one.fraction_of_peak, one.row) for one in group.points), None)


def _intensity(group: Group, _: Sequence[Group]) -> Value | None:
    """FLOP/byte: counted, else the modelled interval around its geometric middle."""
    if not group.points:
        return None
    row = group.points[0].row
    low, high, counted = (row[f"intensity_{end}"] for end in ("min", "max", "counted"))
    if counted is not None:
        return Value(counted, row)
    return Value((low * high) ** 0.5, row, low, high, modelled=True)


def _peak_memory(group: Group, _: Sequence[Group]) -> Value | None:
    """The measured peak in GB."""
    name = "peak_memory_mb"
    peaks_mb = [run.metrics[name] for run in group.runs if name in run.metrics]
    return Value(max(peaks_mb) / 1e3, {name: max(peaks_mb)}) if peaks_mb else None


def _modelled_memory(group: Group, _: Sequence[Group]) -> Value | None:
    """What the cost model says that the step needs, in GB."""
    complexity = group.first.record.complexity if group.first.record else None
    if complexity is None:
        return None
    needed_gb = complexity.memory.needed_bytes / 1e9
    return Value(needed_gb, {"modelled_gb": needed_gb}, modelled=True)


#: The axis of each kind of chart; a curve shows the first of the quantities that it has.
_KINDS: Mapping[str, tuple[str, Sequence[Quantity]]] = {
    "throughput": ("{unit}", [_throughput]),
    "gain": ("Relative {unit}", [_gain]),
    "efficiency": ("Share of the compute peak", [_efficiency]),
    "intensity": ("FLOP/byte", [_intensity]),
    "memory": ("GB", [_peak_memory, _modelled_memory]),
}


def batch_charts(runs: Runs, kind: str, colours: Mapping[str, str]) -> dict[str, Chart]:
    """Return the chart of a kind by machine, of those with a curve of two batch sizes or more.

    All have one kind of axis, to be read beside each other.
    """
    label, quantities = _KINDS[kind]
    unit = rate_unit(sample_of(runs))
    label = label.format(unit=unit if label[0] != "{" else f"{unit[:1].upper()}{unit[1:]}")
    curves = [curve for groups in runs.curves if (curve := _curve(groups, quantities))]
    heights = [end for _, value in chain.from_iterable(curves) for end in value.heights if end > 0]
    log = bool(heights) and max(heights) / min(heights) > _WIDE
    machines = grouped(curves, lambda curve: curve[0][0].env)
    return {
        env: _chart(own, label, colours, log)
        for env, own in machines.items()
        if any(len(curve) > 1 for curve in own)
    }


def _curve(groups: Sequence[Group], quantities: Iterable[Quantity]) -> Curve:
    for quantity in quantities:
        if known := [(one, value) for one in groups if (value := quantity(one, groups))]:
            return known
    return []


def _chart(curves: Sequence[Curve], label: str, colours: Mapping[str, str], log: bool) -> Chart:
    points = list(chain.from_iterable(curves))
    heights = [end for _, value in points for end in value.heights]
    y = Axis(label=label, limits=(0.0, 1.12 * max([*heights, 1e-9])))
    if log:
        y = log_axis(label, [height for height in heights if height > 0], margin=1.4)
    crowded = len(points) > _CROWD
    series = [mark for curve in curves for mark in _series(curve, colours, crowded=crowded)]
    x, legend = _batch_axis([group for group, _ in points]), model_legend(series)
    panel = Panel(x=x, y=y, series=tuple(series), legend=legend)
    # half a page wide, with three entries of the legend in a row
    return Chart((panel,), 3.6, 2.7 + 0.16 * -(-len(legend) // 3))


def _series(curve: Curve, colours: Mapping[str, str], *, crowded: bool) -> Iterator[Marks]:
    """The bars of a curve, and the line through its points."""
    groups, values = zip(*curve, strict=True)
    line = model_key(
        groups[0].first,
        colours,
        xs=tuple(group.batch_size or 0 for group in groups),
        ys=tuple(value.value for value in values),
        size_pt=2.5 if crowded else 4.0,
        filled=not any(value.modelled for value in values),
        line_pt=0.8 if crowded else 1.4,
        opacity=0.6 if crowded else 1.0,
        names=(*[""] * (len(values) - 1), groups[0].distinction),
        hover=tuple(group_hover(group, value.facts) for group, value in curve),
    )
    for x, value in zip(line.xs, values, strict=True):
        if value.low is not None and value.high is not None:
            bar = replace(line, xs=(x, x), ys=(value.low, value.high), names=(), hover=())
            yield replace(bar, shape="", line_pt=0.9)
    yield line


def _batch_axis(groups: Sequence[Group]) -> Axis:
    """As many sizes as have room for their labels, the smallest and the largest among them."""
    sizes = sorted({group.batch_size or 0 for group in groups})
    step = max(1.0, (len(sizes) - 1) / (_MAX_TICKS - 1))
    ticks = {sizes[round(index * step)] for index in range(min(len(sizes), _MAX_TICKS))}
    return Axis(
        label=f"Batch size ({common_sample(group.sample for group in groups)}s)",
        limits=(sizes[0] / 1.3, sizes[-1] * 1.3),
        scale="log2",
        ticks={size: f"{size}" for size in sorted(ticks)},
    )
