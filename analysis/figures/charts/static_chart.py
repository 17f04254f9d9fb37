"""Draws a chart with Matplotlib, for paper: the legend below the axes, no box around them."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from analysis.figures.axes import (
    FONT_PT,
    legend_below,
    legend_handle,
    log_ticks,
    plain,
    say_above,
    say_empty,
)
from analysis.figures.charts.chart import Axis, Chart, Panel, Series

_BAND_OPACITY = 0.25
#: Ticks of a linear vertical axis, at most.
_TICKS = 5


def draw_chart(chart: Chart) -> Figure:
    """Return the figure of `chart`."""
    figure = Figure(figsize=(chart.width_in, chart.height_in), layout="constrained")
    FigureCanvasAgg(figure)
    for place, panel in enumerate(chart.panels, start=1):
        _draw_panel(figure.add_subplot(chart.rows, chart.columns, place), panel, chart.columns)
    return figure


def _draw_panel(axes: Axes, panel: Panel, columns: int) -> None:
    _prepare(axes, "x", panel.x)
    _prepare(axes, "y", panel.y)
    plain(axes)
    if panel.y.names:
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    if panel.title:
        say_above(axes, panel.title, columns)
    handles: list[Artist] = [legend_handle(entry) for entry in panel.legend]
    if (band := panel.band) is not None:
        look: dict[str, Any] = {"color": band.colour, "alpha": _BAND_OPACITY}
        axes.fill_between(band.xs, band.lows, band.highs, linewidth=0, **look)
        handles.append(Patch(label=band.label, **look))
    for place, series in enumerate(panel.series):
        _draw(axes, series, 3 + place / len(panel.series))
    if not panel.series:
        say_empty(axes, panel.empty)
    legend_below(axes, handles, panel.legend_entry_in)


def _prepare(axes: Axes, which: Literal["x", "y"], given: Axis) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}lim": given.limits})  # before the scale, which cannot do with 0
    if given.scale != "linear":
        base = 2 if given.scale == "log2" else 10
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=base)
    if given.ticks is not None:
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
        axis.set_ticks(given.ticks, given.names or [f"{tick:g}" for tick in given.ticks])
        for label in axis.get_ticklabels():
            label.set_parse_math(False)
    elif given.scale != "linear":
        log_ticks(axis, *given.limits)
    elif which == "y":
        axis.set_major_locator(MaxNLocator(_TICKS))
    axis.set_label_text(given.label, fontsize=FONT_PT + 0.5)


def _draw(axes: Axes, series: Series, zorder: float) -> None:
    look: dict[str, Any] = {"color": series.colour, "alpha": series.opacity, "zorder": zorder}
    axes.plot(
        series.xs,
        series.ys,
        linestyle=("--" if series.dashed else "-") if series.line_pt else "",
        linewidth=series.line_pt,
        solid_capstyle="butt",
        marker=series.shape.matplotlib if series.shape else None,
        markersize=series.size_pt,
        markeredgewidth=series.edge_pt,
        markerfacecolor=series.colour if series.filled else "white",
        **look,
    )
    for x, low, high in zip_longest(series.xs, series.lows, series.highs):
        if low is not None and high is not None:
            axes.plot([x, x], [low, high], marker="_", markersize=4, linewidth=0.9, **look)
    for x, y, name in zip(series.xs, series.ys, series.names, strict=False):
        axes.annotate(
            name,
            (x, y),
            xytext=(0, 3.5),
            textcoords="offset points",
            ha="right" if series.names_end_there else "center",
            fontsize=FONT_PT - 2,
            color="#444444",
            parse_math=False,
        )
