"""Draws a chart with Matplotlib, for paper: legend below the axes, no box around them, and files.

Text comes from records: none of it is read as mathematics.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib as mpl
from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform, ScaledTranslation

from analysis.figures.chart import (
    BAND_OPACITY,
    FEW_DECADES,
    Axis,
    Chart,
    Marks,
    Panel,
    end_labels,
)
from analysis.presentation.table import grouped

_FONT_PT = 7.5
#: The least room for a legend entry.
_ENTRY_IN = 1.15
#: Of so many series those of one look are drawn at once: each by itself would take minutes.
_CROWD = 300
_WORDS: dict[str, Any] = {"fontsize": _FONT_PT, "parse_math": False}
#: Matplotlib's markers by the shapes of a chart, which have Plotly's names.
_MARKERS = {
    **{"": "", "circle": "o", "square": "s", "diamond": "D", "cross": "P", "x": "X"},
    **{"triangle-up": "^", "triangle-down": "v", "triangle-left": "<", "triangle-right": ">"},
    **{"x-thin-open": "x", "line-ns": "|", "arrow-up": r"$\uparrow$"},
}
#: Directions tried around a marker, in degrees: beside it first.
_ANGLES = (0, 180, 35, 145, -35, -145, 90, -90)


class _ShownFigure(Figure):
    """A figure that a notebook shows as the last value of a cell, without pyplot."""

    def __init__(self, width_in: float, height_in: float) -> None:
        super().__init__(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png", dpi=120)
        return file.getvalue()


def single_axes(width_in: float = 6.5, height_in: float = 4.5) -> tuple[Figure, Axes]:
    """Return a figure with one Axes; 3.5 in is a column, 7 in a page."""
    figure = _ShownFigure(width_in, height_in)
    return figure, figure.add_subplot()


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Save `figure` as PNG and SVG in `folder`, which is made; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    # `savefig` would draw each file twice
    figure.set_dpi(200)  # sharp on a phone, small in a report
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(png, metadata={"Software": None})
    figure.set_layout_engine("none")  # solved once: the second file has the same layout
    # Text as outlines looks the same everywhere; a fixed salt and no date make files repeatable.
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "mlproject"}):
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(svg, metadata={"Date": None})
    return png, svg


def draw_chart(chart: Chart) -> Figure:
    """Return the figure of `chart`."""
    figure = _ShownFigure(chart.width_in, chart.height_in)
    for number, panel in enumerate(chart.panels, start=1):
        axes = figure.add_subplot(chart.rows, chart.columns, number)
        draw_panel(axes, panel, chart.columns)
    return figure


def draw_panel(axes: Axes, panel: Panel, columns: int = 1) -> None:
    """Draw `panel` on `axes`, of which so many stand beside each other on the page."""
    figure = axes.get_figure(root=True)
    assert figure is not None  # only axes that were removed have none  # noqa: S101
    width_in, height_in = (float(size) for size in figure.get_size_inches())
    _prepare(axes, "x", panel.x)
    _prepare(axes, "y", panel.y)
    axes.tick_params(labelsize=_FONT_PT)
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if not panel.y.label:  # rows with names
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    if panel.title:
        words = panel.title.replace(" %", "\N{NO-BREAK SPACE}%")
        letters = int(width_in * 15 / columns)  # they take about four fifths of the width
        axes.set_title("\n".join(textwrap.wrap(words, letters)), loc="left", **_WORDS)
    handles: list[Artist] = [Line2D([], [], label=one.group, **_look(one)) for one in panel.legend]
    for band in panel.bands:
        shade: dict[str, Any] = {"color": band.colour, "alpha": BAND_OPACITY, "linewidth": 0}
        axes.axvspan(band.low, band.high, **shade)
        handles += [Patch(label=band.label, **shade)] if band.label else []
    for index, one in enumerate(drawn := _joined(panel.series)):
        look = {**_look(one), "zorder": 3 + index / len(drawn)}
        axes.plot(one.xs, one.ys, solid_capstyle="butt", **look)
    _label_slopes(axes, panel.series)
    _label_ends(axes, panel, height_in)
    if any(name for one in panel.series for name in one.names):
        Names(axes, panel.series)
    if panel.empty:  # off the slopes of roofs
        look = {**_WORDS, "fontsize": _FONT_PT + 1}
        axes.text(0.97, 0.05, panel.empty, transform=axes.transAxes, ha="right", **look)
    if handles:
        # Below the axes, where no data can be, with room for tick labels. Long row names push the
        # axes to the right: a centred legend would leave the page there.
        at_right = not panel.y.label
        entry_in = max(_ENTRY_IN, *(0.4 + 0.06 * len(f"{one.get_label()}") for one in handles))
        legend = axes.legend(
            handles=handles,
            loc="upper right" if at_right else "upper center",
            bbox_to_anchor=(1.0 if at_right else 0.5, 0.0),
            bbox_transform=axes.transAxes + ScaledTranslation(0, -0.4, figure.dpi_scale_trans),
            ncols=max(2, min(len(handles), int(width_in / entry_in))),
            fontsize=_FONT_PT,
            frameon=False,
            handlelength=1.6,
            columnspacing=1.2,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)


def _prepare(axes: Axes, which: Literal["x", "y"], given: Axis) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    logarithmic = given.scale.startswith("log")
    axes.set(**{f"{which}lim": given.limits})  # before the scale, which cannot do with 0
    if logarithmic:
        base = 2 if given.scale == "log2" else 10
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=base)
    if given.ticks is not None:
        axis.set_minor_locator(ticker.NullLocator())
        axis.set_ticks(list(given.ticks), list(given.ticks.values()))
        for label in axis.get_ticklabels():
            label.set_parse_math(False)
    elif logarithmic:  # no exponents
        few = given.limits[1] / given.limits[0] < FEW_DECADES
        subs = (1.0, 2.0, 5.0) if few else (1.0,)
        axis.set_major_locator(ticker.LogLocator(10, subs=subs, numticks=12))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
    elif given.scale == "date":
        locator = AutoDateLocator(maxticks=8)  # type: ignore[no-untyped-call]
        axis.set_major_locator(locator)
        axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        axis.get_offset_text().set_fontsize(_FONT_PT)
    else:
        axis.set_major_formatter(ticker.ScalarFormatter(useOffset=False))
        if which == "y":
            axis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_label_text(given.label, **{**_WORDS, "fontsize": _FONT_PT + 0.5})


def _look(series: Marks) -> dict[str, Any]:
    return {
        "color": series.colour,
        "alpha": series.opacity,
        "linestyle": ("--" if series.dashed else "-") if series.line_pt else "",
        "linewidth": series.line_pt,
        "marker": _MARKERS[series.shape],
        "markersize": series.size_pt,
        "markeredgewidth": series.edge_pt,
        "markeredgecolor": series.colour,
        "markerfacecolor": series.colour if series.filled else "white",
    }


def _joined(series: Sequence[Marks]) -> Sequence[Marks]:
    """The series to draw; of a crowd those of one look are one, with gaps between their points."""
    if len(series) < _CROWD:
        return series
    alike = grouped(series, lambda one: replace(one, xs=(), ys=(), names=(), hover=(), group=""))
    gap = (math.nan,)
    return [
        replace(
            look,
            xs=tuple(x for one in those for x in one.xs + gap),
            ys=tuple(y for one in those for y in one.ys + gap),
        )
        for look, those in alike.items()
    ]


def _label_slopes(axes: Axes, series: Sequence[Marks]) -> None:
    """Write the rate of each slope along it: of the n-th one a little farther along."""
    slopes = [marks for marks in series if marks.slope_label]
    for number, marks in enumerate(sorted(slopes, key=lambda marks: marks.ys[0] / marks.xs[0])):
        x = marks.xs[0] * (marks.xs[-1] / marks.xs[0]) ** (0.1 + 0.22 * (number % 4))
        y = x * marks.ys[0] / marks.xs[0] * 1.05
        look: dict[str, Any] = {"color": marks.colour, "va": "bottom", **_WORDS}
        turned = {"transform_rotates_text": True, "rotation_mode": "anchor", **look}
        axes.text(x, y, marks.slope_label, rotation=math.degrees(math.atan2(y, x)), **turned)


def _label_ends(axes: Axes, panel: Panel, page_height_in: float) -> None:
    """Write labels of two lines right of the axes, where no data can be."""
    # a label's height as a share of the axes', which take about two thirds of the page
    gap = 1.3 * 2 * _FONT_PT / 72 / (0.65 * page_height_in)
    for one, height, label_height in end_labels(panel, gap):
        leader = Line2D([1.0, 1.02], [height, label_height], color=one.colour, linewidth=0.7)
        leader.set(transform=axes.transAxes, clip_on=False, zorder=2)
        axes.add_line(leader)
        look: dict[str, Any] = {"transform": axes.transAxes, "va": "center", "color": one.colour}
        axes.text(1.025, label_height, "\n".join(one.end_label), **look, **_WORDS)


class Names(Artist):
    """Writes the names of points beside their markers, the first one first.

    A name covers no other name, no marker and no rate, and stays on the axes; one without room is
    left out.
    `placed` holds name and box, in pixels, of what was written.
    """

    def __init__(self, axes: Axes, series: Sequence[Marks]) -> None:
        super().__init__()
        self._series = series
        self.placed: list[tuple[str, Bbox]] = []
        self.set_zorder(6)
        self.set_in_layout(False)
        axes.add_artist(self)

    def draw(self, renderer: RendererBase) -> None:
        """Place and draw; where depends on the size that the layout gave the axes."""
        axes, pixels_per_pt = self.axes, cast("float", renderer.points_to_pixels(1.0))
        assert axes is not None  # drawn on them  # noqa: S101
        page, markers = axes.get_window_extent(renderer), list[tuple[str, Bbox]]()
        for marks in self._series:
            reach = pixels_per_pt * (marks.size_pt / 2 if marks.shape else 0.0)
            for x, y, name in zip_longest(marks.xs, marks.ys, marks.names, fillvalue=""):
                at = axes.transData.transform((x, y))
                markers.append((name, Bbox([at - reach, at + reach])))
        # slopes have their rates among the data
        written = [text for text in axes.texts if text.get_transform() == axes.transData]
        taken = [
            *(box for _, box in markers),
            *(text.get_window_extent(renderer) for text in written if text.get_text()),
        ]
        self.placed = []
        for name, marker in ((name, marker) for name, marker in markers if name):
            look = {"ha": "left", "va": "bottom", "color": "#222222", "parse_math": False}
            text = Text(0, 0, name, fontsize=6, transform=IdentityTransform(), **look)  # type: ignore[arg-type]
            # Grid and roofs may run under a name: white around the letters keeps it readable.
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
            text.set_figure(axes.figure)
            covered = [box for box in taken if box is not marker]
            for box in _boxes(marker, text.get_window_extent(renderer), 3 * pixels_per_pt):
                inside = page.contains(*box.min) and page.contains(*box.max)
                if inside and not box.count_overlaps(covered):
                    taken.append(box)
                    self.placed.append((name, box))
                    text.set_position((box.x0, box.y0))
                    text.draw(renderer)
                    break


def _boxes(marker: Bbox, size: Bbox, distance: float) -> Iterator[Bbox]:
    """Where a text of that size may stand around the marker, this far from its edge."""
    x, y = (marker.x0 + marker.x1) / 2, (marker.y0 + marker.y1) / 2
    reach = (marker.x1 - marker.x0) / 2 + distance
    for angle in _ANGLES:
        across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        left = x + reach * across + size.width * (across - 1) / 2
        bottom = y + reach * up + size.height * (up - 1) / 2
        yield Bbox.from_bounds(left, bottom, size.width, size.height)
