"""The roofline of runs in one call, as a notebook wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

from matplotlib.figure import Figure

from analysis.figures.axes import single_axes
from analysis.figures.rooflines.drawn_point import DrawnPoint, drawn_rows
from analysis.figures.rooflines.interactive_scene import interactive_roofline
from analysis.figures.rooflines.static_scene import draw_roofline
from analysis.runs.points import RooflinePoint
from analysis.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@overload
def plot_roofline(
    points: pd.DataFrame | Sequence[Run], *, interactive: Literal[False] = ...
) -> Figure: ...
@overload
def plot_roofline(
    points: pd.DataFrame | Sequence[Run], *, interactive: Literal[True]
) -> go.Figure: ...
def plot_roofline(
    points: pd.DataFrame | Sequence[Run], *, interactive: bool = False
) -> Figure | go.Figure:
    """Draw runs under the roofs of their machines, and return the figure, which a notebook shows.

    `points` is a table of `pull_points()`, or rows chosen from one, also read again from a file; or
    placed runs, such as `pull_records().runs()`. Runs without a place are left out. Colour is the
    model, the marker the arithmetic, its size the batch size; without counters a run is an interval
    of intensity. The figure is Matplotlib's, `interactive` makes it Plotly's, where hovering shows
    the numbers of a run. Raises `UserError` for a table that lacks a column.

    To draw on axes of your own, use `draw_roofline`.
    """
    drawn: Sequence[RooflinePoint | DrawnPoint]
    if isinstance(points, Sequence):
        drawn = [run.point for run in points if run.point is not None]
    else:
        drawn = drawn_rows(points)
    if interactive:
        return interactive_roofline(drawn)
    figure, axes = single_axes()
    draw_roofline(axes, drawn)
    return figure
