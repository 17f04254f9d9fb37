"""Charts of configurations: with a row each, and over batch size with a line each.

Colour is the model, the marker the precision. Over batch size a filled marker was measured, an open
one modelled.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from analysis.figures.chart import (
    KEY_GREY,
    Axis,
    Band,
    Chart,
    Marks,
    Panel,
    hover,
    key,
    model_key,
    model_legend,
)
from analysis.runs.frame import Row, group_row, point_row
from analysis.runs.groups import Group, batch_curves, fastest
from analysis.runs.run import TOKENS_PER_S, Run
from bench.config import common_sample, rate_column, rate_unit

#: Rows that a page holds.
MAX_ROWS = 45
SIZE_PT = 4.5
_MAX_NAMES = 4
_DATA = ("images from disk", "synthetic")
#: What hovering shows of a configuration, as far as a figure has it.
_SHOWN = (
    "ratio_to_smallest attained_gflops fraction_of_peak intensity_counted intensity peak_memory_mb "
    "modelled_gb scatter rate_mean throughput_tokens_per_s repeats energy cost runs"
)


def group_hover(group: Group, facts: Mapping[str, Any] | None = None) -> str:
    """Return what hovering says of a configuration: its throughput, its runs, and `facts`."""
    names = group.names
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    row = {
        **(facts or {}),
        **group_row(group, rate_column(group.sample)),
        TOKENS_PER_S: group.mean(TOKENS_PER_S),
        "runs": f"{', '.join(names[:_MAX_NAMES])}{more}",
    }
    return hover(group.label, row, _SHOWN, group.sample)


#: A longer name of a row is of several lines, so that its bars have the larger half of the page.
_ROW_LETTERS = 44


def row_chart(
    names: Sequence[str],
    series: Sequence[Marks],
    x: Axis,
    *,
    legend: Sequence[Marks] = (),
    title: str = "",
    at: Sequence[float] | None = None,
    bands: Sequence[Band] = (),
    empty: str = "no run has this",
) -> Chart:
    """Return a chart with a row per name, from the top, at heights 0, 1, ... or `at`."""
    heights = tuple(range(len(names)) if at is None else at)
    rows = ["\n".join(textwrap.wrap(name, _ROW_LETTERS)) for name in names]
    lines = max((row.count("\n") + 1 for row in rows), default=1)
    last = max(heights, default=0)
    panel = Panel(
        x=x,
        y=Axis(label="", limits=(last + 0.7, -0.9), ticks=heights, names=tuple(rows)),
        series=tuple(series),
        empty="" if series else empty,
        bands=tuple(bands),
        title=title,
        legend=tuple(legend) if names else (),
        legend_entry_in=1.6,
    )
    return Chart((panel,), 6.5, 1.3 + (0.03 + 0.16 * lines) * max(2, last + 1))


def hidden_rows(count: int) -> str:
    """Return where the rows are that a chart has no room for."""
    return f"and {count - MAX_ROWS} more rows in the tables" if count > MAX_ROWS else ""


def models_chart(groups: Sequence[Group], colours: Mapping[str, str]) -> Chart:
    """Return each machine's and model's fastest batch: samples/s, a marker per precision.

    Beside each marker stands its batch size.
    """
    best = fastest(groups)
    all_rows = list(dict.fromkeys((env, model) for env, model, _ in sorted(best)))
    rows = {one: row for row, one in enumerate(all_rows[:MAX_ROWS])}
    series = [
        replace(_marker(group, rows[env, model], colours), names=(f"{group.batch_size}",))
        for (env, model, _), group in best.items()
        if (env, model) in rows
    ]
    return row_chart(
        [f"{env}  {model}" for env, model in rows],
        series,
        _rate_axis(best.values()),
        legend=[one for one in model_legend(series) if one.shape],
        title=hidden_rows(len(all_rows)),
    )


def _marker(group: Group, row: int, colours: Mapping[str, str]) -> Marks:
    look = model_key(group, colours, size_pt=SIZE_PT, hover=(group_hover(group),))
    return replace(look, xs=(group.samples_per_s,), ys=(row,))


def variability_chart(machines: Sequence[Row]) -> Chart:
    """Return the deviation between repeats: a dot per configuration, a bar pooled by machine.

    `machines` are rows of `scatter_rows`.
    """
    dot = key("one configuration", KEY_GREY, "circle", size_pt=3.5)
    bar = key("pooled", "#0072B2", "line-ns", size_pt=10, edge_pt=2.2)
    dots, bars = [], []
    for row, machine in enumerate(machines):
        for group in machine["groups"]:
            share = group.repeats().relative_deviation or 0.0
            words = group_hover(group, {"scatter": share})
            dots.append(replace(dot, xs=(100 * share,), ys=(row,), hover=(words,), opacity=0.5))
        words = hover(machine["env"], machine, "scatter configurations degrees")
        bars.append(replace(bar, xs=(100 * machine["scatter"],), ys=(row,), hover=(words,)))
    axis = _log_axis("SD between repeats (%)", [one.xs[0] for one in dots if one.xs[0] > 0])
    return row_chart(
        [machine["env"] for machine in machines], [*dots, *bars], axis, legend=(dot, bar)
    )


def real_synthetic_chart(pairs: Sequence[tuple[Group, Group]], colours: Mapping[str, str]) -> Chart:
    """Return pairs (real, synthetic) of one configuration: filled and open, joined by a line."""
    series: list[Marks] = []
    for row, pair in enumerate(pairs[:MAX_ROWS]):
        marks = [
            replace(_marker(group, row, colours), group=name, filled=name == _DATA[0])
            for name, group in zip(_DATA, pair, strict=True)
        ]
        ends = marks[0].xs + marks[1].xs
        series += [Marks(xs=ends, ys=(row, row), colour=marks[0].colour, line_pt=1.2), *marks]
    return row_chart(
        [real.label for real, _ in pairs[:MAX_ROWS]],
        series,
        _rate_axis([group for pair in pairs for group in pair]),
        legend=[key(name, KEY_GREY, "circle", filled=name == _DATA[0]) for name in _DATA],
        title=hidden_rows(len(pairs)),
    )


def _rate_axis(groups: Collection[Group]) -> Axis:
    unit = rate_unit(common_sample(group.sample for group in groups))
    return _log_axis(unit.capitalize(), [group.samples_per_s for group in groups])


def _log_axis(label: str, values: Collection[float], margin: float = 1.5) -> Axis:
    low, high = min(values, default=1.0), max(values, default=10.0)
    return Axis(label=label, limits=(low / margin, high * margin), scale="log")


# Over batch size

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
    needed_gb = complexity.memory.total_bytes / 1e9
    return Value(needed_gb, {"modelled_gb": needed_gb}, modelled=True)


def batch_chart(
    curves: Sequence[Curve],
    label: str,
    *,
    colours: Mapping[str, str],
    logarithmic: bool | None = None,
) -> Chart:
    """Return curves over batch size; `logarithmic` by default where they span widely."""
    # a crowd is drawn smaller and half transparent, so that it shows its density
    crowded = sum(len(curve.groups) for curve in curves) > 60
    x = _batch_axis([group for curve in curves for group in curve.groups])
    y = _height_axis(label, curves, spans_widely(curves) if logarithmic is None else logarithmic)
    series = [_series(curve, colours, crowded) for curve in curves]
    legend = model_legend(series)
    empty = "" if curves else "no batch sizes to draw"
    panel = Panel(x=x, y=y, series=tuple(series), empty=empty, legend=legend)
    # half a page wide, with three entries of the legend in a row
    return Chart((panel,), 3.6, 2.7 + 0.16 * -(-len(legend) // 3))


def spans_widely(curves: Iterable[Curve]) -> bool:
    """Whether the curves' positive values span a factor over 8, which asks for a log axis."""
    positive = [height for curve in curves for height in curve.heights if height > 0]
    return bool(positive) and max(positive) / min(positive) > 8


def _series(curve: Curve, colours: Mapping[str, str], crowded: bool) -> Marks:
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
    return _log_axis(label, [value for value in values if value > 0], margin=1.4)
