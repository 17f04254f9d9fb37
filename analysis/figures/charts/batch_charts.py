"""Quantities over batch size: a line per model and precision of one machine, with their spread.

Colour is the model, the marker the precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from analysis.figures.charts.batch_curves import Curve
from analysis.figures.charts.chart import Axis, Band, Chart, Panel, Series, rule
from analysis.figures.charts.measured_words import hover_of, rate_words
from analysis.figures.style import MARKERS, OTHER_MODELS, LegendEntry, precision_marker
from analysis.prediction.curve import PredictedCurve
from analysis.runs.quantities import interval, percent, three_digits
from bench.config import Sample, common_sample, rate_unit

#: A figure over batch sizes: half a page, and what a row of its legend adds to its height.
_WIDTH_IN, _HEIGHT_IN, _LEGEND_ROW_IN = 3.6, 2.7, 0.16
_LEGEND_COLUMNS = 3
#: More points than this are drawn smaller and half transparent, so that a crowd shows its density.
_CROWD = 60
#: Values that span more than this factor need a logarithmic axis to be read.
_WIDE = 8.0
#: Batch sizes with a label, at most.
_TICKS = 7
#: Places at which a model is drawn.
_PLACES = 60


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
    crowded = sum(len(curve.batches) for curve in curves) > _CROWD
    if logarithmic is None:
        logarithmic = spans_widely(curves)
    sample = common_sample(curve.sample for curve in curves)
    x = _batch_axis([batch for curve in curves for batch in curve.batches], sample)
    y = _height_axis(label, _heights(curves), logarithmic)
    series = [_series(curve, colours.get(curve.arch, OTHER_MODELS), crowded) for curve in curves]
    if limit is not None and limit[0] < 3 * y.limits[1]:
        low, high = y.limits
        y = Axis(label=label, limits=(low, max(high, 1.1 * limit[0])), scale=y.scale)
        value, words = limit
        series.append(rule(y=value, limits=x.limits, colour="#222222", words=words, dashed=True))
    legend = _legend(curves, colours)
    panel = Panel(x=x, y=y, series=tuple(series), empty="no batch sizes to draw", legend=legend)
    return Chart(
        (panel,), _WIDTH_IN, _HEIGHT_IN + _LEGEND_ROW_IN * -(-len(legend) // _LEGEND_COLUMNS)
    )


def spans_widely(curves: Iterable[Curve]) -> bool:
    """Whether the curves' positive values span a factor over 8, which asks for a log axis."""
    positive = [height for height in _heights(curves) if height > 0]
    return bool(positive) and max(positive) / min(positive) > _WIDE


def _heights(curves: Iterable[Curve]) -> list[float]:
    """All values and ends of intervals."""
    return [
        height
        for curve in curves
        for height in (*curve.values, *curve.lows, *curve.highs)
        if height is not None
    ]


def _series(curve: Curve, colour: str, crowded: bool) -> Series:
    names = (*[""] * (len(curve.batches) - 1), curve.distinction) if curve.distinction else ()
    return Series(
        xs=curve.batches,
        ys=curve.values,
        lows=curve.lows,
        highs=curve.highs,
        colour=colour,
        shape=precision_marker(curve.precision),
        size_pt=2.5 if crowded else 4.0,
        filled=not curve.open,
        line_pt=0.8 if crowded else 1.4,
        opacity=0.6 if crowded else 1.0,
        names=names,
        names_end_there=True,
        hover=curve.hover,
        group=f"{curve.arch} {curve.precision}",
    )


def _batch_axis(batches: Iterable[int], sample: Sample) -> Axis:
    """As many sizes as have room for their labels, the smallest and the largest among them."""
    sizes = sorted(set(batches)) or [1]
    step = max(1.0, (len(sizes) - 1) / (_TICKS - 1))
    ticks = sorted({sizes[round(place * step)] for place in range(min(len(sizes), _TICKS))})
    return Axis(
        label=f"Batch size ({sample}s)",
        limits=(sizes[0] / 1.3, sizes[-1] * 1.3),
        scale="log2",
        ticks=tuple(ticks),
    )


def _height_axis(label: str, values: Sequence[float], logarithmic: bool) -> Axis:
    if not logarithmic:
        return Axis(label=label, limits=(0.0, 1.12 * max([*values, 1e-9])))
    positive = [value for value in values if value > 0]
    limits = min(positive, default=1.0) / 1.4, max(positive, default=10.0) * 1.4
    return Axis(label=label, limits=limits, scale="log")


def _legend(curves: Iterable[Curve], colours: Mapping[str, str]) -> tuple[LegendEntry, ...]:
    """An entry per model and per precision."""
    archs = sorted({curve.arch for curve in curves})
    precisions = {curve.precision: curve.open for curve in curves}
    return (
        *(LegendEntry(arch, colours.get(arch, OTHER_MODELS), line_pt=2.5) for arch in archs),
        *(
            LegendEntry(name, "#555555", precision_marker(name), "white" if is_open else None)
            for name, is_open in sorted(precisions.items())
        ),
    )


def prediction_panel(
    curve: PredictedCurve, label: str, colour: str = "#0072B2", sample: Sample = "image"
) -> Panel:
    """Return measured batch sizes, the model between them and its 95 % interval."""
    unit = rate_unit(sample)
    sizes = [one.batch_size for one in curve.measured]
    rates = [one.samples_per_s for one in curve.measured]
    between = np.unique(np.geomspace(min(sizes), max(sizes), _PLACES).round()).astype(int).tolist()
    values, lows, highs = zip(*(curve.samples_per_s(batch) for batch in between), strict=True)
    model = Series(
        xs=tuple(between),
        ys=values,
        colour="#222222",
        line_pt=1.1,
        hover=tuple(
            (
                f"{label} batch {batch}, predicted",
                f"{three_digits(value)} {unit}, 95 % interval {interval(low, high)}",
            )
            for batch, value, low, high in zip(between, values, lows, highs, strict=True)
        ),
        group="model",
    )
    measured = Series(
        xs=tuple(sizes),
        ys=tuple(rates),
        colour=colour,
        shape=MARKERS["fp32"],
        hover=tuple(
            hover_of(
                f"{label} batch {one.batch_size}",
                one.runs,
                rate_words(one.samples_per_s, unit, one.relative_deviation, len(one.runs)),
            )
            for one in curve.measured
        ),
        group="measured",
    )
    return Panel(
        x=_batch_axis(sizes, sample),
        y=Axis(label=unit.capitalize(), limits=(0.0, 1.5 * max(rates))),
        series=(model, measured),
        band=Band(model.xs, lows, highs, "#999999", "95 % interval"),
        empty="no batch sizes to draw",
        title=f"{label}: held out, missed by {percent(curve.held_out_error)}",
        legend=(
            LegendEntry("measured", colour, MARKERS["fp32"]),
            LegendEntry("model", "#222222", line_pt=1.1),
        ),
    )
