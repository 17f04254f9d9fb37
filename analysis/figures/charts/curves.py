"""Quantities over batch size: a line per model and precision of one machine, with their spread.

Colour is the model, the marker the precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from analysis.figures.axes import (
    FONT_PT,
    legend_below,
    legend_key,
    log_ticks,
    plain,
    say_empty,
    size_in,
)
from analysis.figures.style import (
    OTHER_MODELS,
    model_colours,
    precision_marker,
)
from analysis.prediction.curve import PredictedCurve
from analysis.runs.quantities import percent

#: More points than this are drawn smaller and half transparent, so that a crowd shows its density.
_CROWD = 60
#: Values that span more than this factor need a logarithmic axis to be read.
_WIDE = 8.0
#: Tick labels of batch sizes that fit side by side, per inch.
_TICKS_PER_IN = 2.2


@dataclass(frozen=True)
class Curve:
    """One quantity over batch size; `lows` and `highs` are the ends of its spread, if it has any.

    `open` markers are of modelled values, filled ones of measured.
    """

    arch: str
    precision: str
    env: str
    batches: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float | None, ...] = ()
    highs: tuple[float | None, ...] = ()
    open: bool = False
    distinction: str = ""  # what else distinguishes it from a curve of its model and precision


def draw_curves(
    axes: Axes,
    curves: Sequence[Curve],
    ylabel: str,
    *,
    colours: Mapping[str, str] | None = None,
    logarithmic: bool | None = None,
) -> None:
    """Draw curves over batch size; `logarithmic` by default where they span widely.

    `colours` keep models the same in several axes; the legend is `curve_handles`.
    """
    palette = colours or model_colours(curve.arch for curve in curves)
    crowded = sum(len(curve.batches) for curve in curves) > _CROWD
    for curve in curves:
        _draw(axes, curve, palette.get(curve.arch, OTHER_MODELS), crowded)
    if logarithmic is None:
        logarithmic = spans_widely(curves)
    batches = [batch for curve in curves for batch in curve.batches]
    _prepare(axes, batches, _heights(curves), logarithmic)
    axes.set_ylabel(ylabel, fontsize=FONT_PT + 0.5)
    if not batches:
        say_empty(axes, "no batch sizes to draw")


def draw_prediction(axes: Axes, curve: PredictedCurve, label: str, colour: str = "#0072B2") -> None:
    """Draw measured batch sizes, the model between them and its 95 % interval."""
    sizes = [one.batch_size for one in curve.measured]
    rates = [one.images_per_s for one in curve.measured]
    points = Curve(label, "", "", tuple(sizes), tuple(rates))
    draw_curves(axes, [points], "Images/s", colours={label: colour})
    axes.lines[0].set_linestyle("")
    axes.lines[0].set_marker("o")
    between = np.unique(np.geomspace(min(sizes), max(sizes), 60).round()).astype(int)
    found = [curve.images_per_s(int(batch)) for batch in between]
    values, lows, highs = (np.array(column) for column in zip(*found, strict=True))
    axes.plot(between, values, color="#222222", linewidth=1.1)
    axes.fill_between(between, lows, highs, color="#999999", alpha=0.25, linewidth=0)
    axes.set_ylim(0, 1.5 * max(rates))
    title = f"{label}: held out, missed by {percent(curve.held_out_error)}"
    axes.set_title(title, loc="left", fontsize=FONT_PT, parse_math=False)
    handles = [
        legend_key("measured", color=colour, marker="o"),
        legend_key("model", color="#222222", linestyle="-", linewidth=1.1),
        Patch(color="#999999", alpha=0.25, label="95 % interval"),
    ]
    legend_below(axes, handles)


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


def curve_handles(curves: Sequence[Curve], colours: Mapping[str, str]) -> list[Artist]:
    """Return a legend entry per model and per precision."""
    archs = sorted({curve.arch for curve in curves})
    handles: list[Artist] = [
        Line2D([], [], color=colours.get(arch, OTHER_MODELS), linewidth=2.5, label=arch)
        for arch in archs
    ]
    precisions = {curve.precision: curve.open for curve in curves}
    handles += [
        legend_key(
            precision,
            marker=precision_marker(precision),
            markerfacecolor="white" if is_open else "#555555",
        )
        for precision, is_open in sorted(precisions.items())
    ]
    return handles


def _draw(axes: Axes, curve: Curve, colour: str, crowded: bool) -> None:
    axes.plot(
        curve.batches,
        curve.values,
        color=colour,
        linewidth=0.8 if crowded else 1.4,
        alpha=0.6 if crowded else 1.0,
        marker=precision_marker(curve.precision),
        markersize=2.5 if crowded else 4,
        markerfacecolor="white" if curve.open else colour,
        zorder=4,
    )
    if curve.distinction:
        axes.annotate(
            curve.distinction,
            (curve.batches[-1], curve.values[-1]),
            xytext=(0, 4),
            textcoords="offset points",
            ha="right",
            fontsize=FONT_PT - 2,
            color="#444444",
            parse_math=False,
        )
    for batch, low, high in zip(curve.batches, curve.lows, curve.highs, strict=False):
        if low is not None and high is not None:
            axes.plot(
                [batch, batch],
                [low, high],
                color=colour,
                marker="_",
                markersize=4,
                linewidth=0.9,
                alpha=0.6 if crowded else 1.0,
                zorder=3,
            )


def _prepare(
    axes: Axes, batches: Iterable[int], values: Sequence[float], logarithmic: bool
) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted(set(batches)) or [1]
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    axes.xaxis.set_major_locator(FixedLocator(_ticked(sizes, size_in(axes)[0])))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(FixedLocator([]))
    if logarithmic:
        positive = [value for value in values if value > 0]
        low, high = min(positive, default=1.0), max(positive, default=10.0)
        axes.set_ylim(low / 1.4, high * 1.4)  # before the scale, which cannot do with one value
        axes.set_yscale("log")
        log_ticks(axes.yaxis, low, high)
    else:
        axes.set_ylim(0, 1.12 * max([*values, 1e-9]))
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("Batch size (images)", fontsize=FONT_PT + 0.5)
    plain(axes)


def _ticked(sizes: Sequence[int], width_in: float) -> list[int]:
    """As many sizes as have room for their labels, the smallest and the largest among them."""
    most = max(2, int(width_in * _TICKS_PER_IN))
    if len(sizes) <= most:
        return list(sizes)
    step = (len(sizes) - 1) / (most - 1)
    return sorted({sizes[round(place * step)] for place in range(most)})
