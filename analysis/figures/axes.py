"""What every static figure shares: its size and files, its ticks, and words beside the data."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from analysis.figures.style import LegendEntry

FONT_PT = 7.5
#: Pixels per inch of the PNG: sharp on a phone, small in a report.
_PNG_DPI = 200
_NOTEBOOK_DPI = 120
#: Room for one legend entry, and for the tick labels above the legend, in inches.
_ENTRY_IN = 1.15
_LEGEND_IN = 0.4
#: Letters of a line above the axes, which take about four fifths of the width.
_CHARACTERS_PER_IN = 15
#: Axes that span less than this factor get ticks between the powers of ten.
_FEW_DECADES = 300


class ShownFigure(Figure):
    """A figure that a notebook shows as the last value of a cell, without pyplot."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png", dpi=_NOTEBOOK_DPI)
        return file.getvalue()


def single_axes(width_in: float = 6.5, height_in: float = 4.5) -> tuple[Figure, Axes]:
    """Return a figure with one Axes; 3.5 in is a column, 7 in a page."""
    figure = ShownFigure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Save `figure` as PNG and SVG in `folder`, which is made; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=_PNG_DPI, metadata={"Software": None})
    figure.set_layout_engine("none")  # solved once: the second file has the same layout
    # Text as outlines looks the same everywhere; a fixed salt and no date make files repeatable.
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "mlproject"}):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def size_in(axes: Axes) -> tuple[float, float]:
    """Return width and height of the page that `axes` is on."""
    width_in, height_in = _figure_of(axes).get_size_inches()
    return float(width_in), float(height_in)


def plain(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Set small tick labels, a light grid and no box, as every figure here has them."""
    axes.tick_params(labelsize=FONT_PT)
    axes.grid(True, which="major", axis=grid, color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_ticks(axis: Axis, low: float, high: float) -> None:
    """Tick a logarithmic axis at powers of ten, and between them where it has few; no exponents."""
    steps = (1.0, 2.0, 5.0) if high / low < _FEW_DECADES else (1.0,)
    axis.set_major_locator(LogLocator(10, subs=steps, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def say_empty(axes: Axes, words: str) -> None:
    """Write `words` where the data would be, off the roofs' slopes."""
    axes.text(
        0.97,
        0.05,
        words,
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        fontsize=FONT_PT + 1,
        parse_math=False,
    )


def say_above(axes: Axes, words: str, columns: int = 1) -> None:
    """Write `words` above axes, in as many lines as a column of the page asks for."""
    lines = textwrap.wrap(words, int(size_in(axes)[0] * _CHARACTERS_PER_IN / columns))
    axes.set_title("\n".join(lines), loc="left", fontsize=FONT_PT, parse_math=False)


def legend_below(axes: Axes, handles: Sequence[Artist], entry_in: float = _ENTRY_IN) -> None:
    """Draw the legend below the axes, where no data can be, in columns of `entry_in`."""
    if not handles:
        return
    # Long row names push the axes to the right: a centred legend would leave the page there.
    rows_named = axes.yaxis.get_major_locator().__class__ is FixedLocator
    below = ScaledTranslation(0, -_LEGEND_IN, _figure_of(axes).dpi_scale_trans)
    legend = axes.legend(
        handles=handles,
        loc="upper right" if rows_named else "upper center",
        bbox_to_anchor=(1.0 if rows_named else 0.5, 0.0),
        bbox_transform=axes.transAxes + below,
        ncols=max(2, min(len(handles), int(size_in(axes)[0] / entry_in))),
        fontsize=FONT_PT,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def legend_handle(entry: LegendEntry) -> Line2D:
    """Return what an entry of a legend means, as Matplotlib draws it."""
    return Line2D(
        [],
        [],
        color=entry.colour,
        linestyle=("--" if entry.dashed else "-") if entry.line_pt else "",
        linewidth=entry.line_pt,
        marker=entry.shape.matplotlib if entry.shape else None,
        markersize=entry.size_pt,
        markeredgewidth=entry.edge_pt,
        markerfacecolor=entry.face or entry.colour,
        label=entry.label,
    )


def legend_key(label: str, **style: Any) -> Line2D:
    """Return a grey legend entry without a line; `style` is of Matplotlib's `Line2D`."""
    grey = {"color": "#555555", "linestyle": "", "markersize": 4}
    return Line2D([], [], label=label, **{**grey, **style})


def _figure_of(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None  # only axes that were removed have none  # noqa: S101
    return figure
