"""Figures without a window: made, handed to a drawing function, saved, gone."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

#: Pixels per inch of the PNG: sharp on a phone, small in a report.
_PNG_DPI = 200


def single_axes(width_in: float = 6.5, height_in: float = 4.5) -> tuple[Figure, Axes]:
    """Return a figure with one Axes; 3.5 in is a column, 7 in a page."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Save `figure` as PNG and SVG in `folder`; return both paths."""
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=_PNG_DPI, metadata={"Software": None})
    figure.set_layout_engine("none")  # solved once: the second file has the same layout
    # Text as outlines looks the same everywhere; a fixed salt and no date make files repeatable.
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "mlproject"}):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def panel_axes(
    count: int, width_in: float = 6.5, panel_height_in: float = 2.3, columns: int = 2
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` Axes of equal size in rows, for one machine each, say."""
    across = 1 if width_in < 5 or count == 1 else columns
    rows = max(1, -(-count // across))
    figure = Figure(figsize=(width_in, panel_height_in * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    found = [figure.add_subplot(rows, across, place + 1) for place in range(max(count, 1))]
    return figure, found
