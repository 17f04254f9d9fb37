"""How many times as fast as one machine the others are: a row per configuration and machine.

Rows of one model and precision stand together, within them those of one batch size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from analysis.comparison.machines.speedups import MachinePair, SharedConfiguration
from analysis.figures.charts.chart import Axis, Chart, Panel, Series, rule
from analysis.figures.charts.measured_words import group_rate, hover_of
from analysis.figures.style import OTHER_MODELS, LegendEntry, precision_marker
from analysis.runs.quantities import interval, percent, ratio_digits, three_digits

#: Rows of one figure; further ones go to the next.
_ROWS = 40
_WIDTH_IN, _ROW_IN, _BESIDE_IN = 6.5, 0.17, 1.2
#: Between rows of two models or precisions.
_GAP = 0.6
_SIZE_PT, _LINE_PT = 4.5, 1.3
_GREY = "#555555"
#: An axis over less than this factor has ticks in even steps, so many at most.
_FEW_DECADES, _MOST_STEPS = 5.0, 5


class SpeedUpPage(NamedTuple):
    """A chart, and the ids of the runs that it shows."""

    chart: Chart
    runs: tuple[str, ...]


class _Row(NamedTuple):
    machine: str
    against: str
    one: SharedConfiguration

    @property
    def order(self) -> tuple[str, str, int, str]:
        return (*self.one.series, self.one.comparison.a.batch_size or 0, self.machine)


def speed_up_charts(pairs: Sequence[MachinePair], colours: Mapping[str, str]) -> list[SpeedUpPage]:
    """Return the configurations that enter a mean, as many charts as they need; none of none.

    All have one axis. Colour is the model, the marker the precision; it is open where there is no
    interval.
    """
    rows = sorted(
        (_Row(pair.b, pair.a, one) for pair in pairs for one in pair.counted),
        key=lambda row: row.order,
    )
    axis = _axis(rows)
    pages = [rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS)]
    return [
        SpeedUpPage(
            _chart(page, axis, colours),
            tuple(dict.fromkeys(name for row in page for name in row.one.names)),
        )
        for page in pages
    ]


def _axis(rows: Sequence[_Row]) -> Axis:
    estimates = [row.one.comparison.estimate for row in rows]
    ends = [end for one in estimates for end in (one.ratio, one.low, one.high) if end is not None]
    low, high = min([1.0, *ends]), max([1.0, *ends])
    margin = max((high / low) ** 0.08, 1.005)
    return Axis(
        label=f"Times as fast as {rows[0].against}" if rows else "",
        limits=(low / margin, high * margin),
        scale="log",
        ticks=_ticks(low, high),
    )


def _ticks(low: float, high: float) -> tuple[float, ...] | None:
    """Even steps where the axis is too short for powers of ten and their halves; else None."""
    if high / low > _FEW_DECADES:
        return None
    least = max(high - low, 0.01) / _MOST_STEPS
    power = 10 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
    first, last = math.floor(low / step), math.ceil(high / step)
    return tuple(float(f"{place * step:.6g}") for place in range(first, last + 1) if place > 0)


def _chart(rows: Sequence[_Row], axis: Axis, colours: Mapping[str, str]) -> Chart:
    places: list[float] = []
    series: list[Series] = []
    last = None
    for row in rows:
        place = places[-1] + 1.0 if places else 0.0
        if last not in (None, row.one.series):
            place += _GAP
        last = row.one.series
        places.append(place)
        series += _drawn(row, place, colours)
    limits = (places[-1] + 0.7, -0.7)
    series.insert(0, rule(x=1.0, limits=limits, colour="#777777", words=f"{rows[0].against}: 1"))
    panel = Panel(
        x=axis,
        y=Axis(
            label="",
            limits=limits,
            ticks=tuple(places),
            names=tuple(_name(row) for row in rows),
        ),
        series=tuple(series),
        empty="",
        legend=_legend(rows, colours),
    )
    return Chart((panel,), _WIDTH_IN, _BESIDE_IN + _ROW_IN * (places[-1] + 1))


def _name(row: _Row) -> str:
    group, (_, precision) = row.one.comparison.b, row.one.series
    also = f" ({group.distinction})" if group.distinction else ""
    return f"{group.arch}{also} {precision} batch {group.batch_size}, {row.machine}"


def _drawn(row: _Row, place: float, colours: Mapping[str, str]) -> list[Series]:
    """The interval as a line, the ratio as a marker."""
    estimate = row.one.comparison.estimate
    arch, precision = row.one.comparison.b.arch, row.one.comparison.b.precision
    colour, group = colours.get(arch, OTHER_MODELS), f"{arch} {precision}"
    known = estimate.low is not None and estimate.high is not None
    marker = Series(
        xs=(estimate.ratio,),
        ys=(place,),
        colour=colour,
        shape=precision_marker(precision),
        size_pt=_SIZE_PT,
        filled=known,
        hover=(_hover(row),),
        group=group,
    )
    if not known:
        return [marker]
    ends = (estimate.low or 0.0, estimate.high or 0.0)
    line = Series(xs=ends, ys=(place, place), colour=colour, line_pt=_LINE_PT, group=group)
    return [line, marker]


def _hover(row: _Row) -> tuple[str, ...]:
    """Every number of a row."""
    found, ours, theirs = row.one.comparison, row.one.a, row.one.b
    estimate, sample = found.estimate, found.b.sample
    known = estimate.low is not None and estimate.high is not None
    span = (
        f"95 % interval {interval(estimate.low or 0.0, estimate.high or 0.0)}, {found.word}"
        if known
        else "single runs, no interval"
    )
    lines = [
        f"{ratio_digits(estimate.ratio)} times as fast as {row.against}, {span}",
        f"{row.machine}: {', '.join(group_rate(found.b))}",
        f"{row.against}: {', '.join(group_rate(found.a))}",
    ]
    for what, b, a in (
        ("of the compute peak (MFU)", theirs.mfu and percent(theirs.mfu), ours.mfu
         and percent(ours.mfu)),
        (f"J/{sample}", theirs.energy_j_per_sample and three_digits(theirs.energy_j_per_sample),
         ours.energy_j_per_sample and three_digits(ours.energy_j_per_sample)),
        (f"for a million {sample}s", theirs.cost and f"{theirs.cost}",
         ours.cost and f"{ours.cost}"),
    ):  # fmt: skip
        if a or b:
            lines.append(f"{b or 'unknown'} against {a or 'unknown'} {what}")
    return hover_of(_name(row), row.one.names, *lines)


def _legend(rows: Sequence[_Row], colours: Mapping[str, str]) -> tuple[LegendEntry, ...]:
    """An entry per model and per precision."""
    archs = sorted({row.one.comparison.b.arch for row in rows})
    precisions = sorted({row.one.comparison.b.precision for row in rows})
    return (
        *(LegendEntry(arch, colours.get(arch, OTHER_MODELS), line_pt=2.5) for arch in archs),
        *(LegendEntry(name, _GREY, precision_marker(name)) for name in precisions),
    )
