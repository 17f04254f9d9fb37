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
    # Text as outlines looks the same everywhere; a fixed salt and no date make files repeatable.
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "mlproject"}):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg
