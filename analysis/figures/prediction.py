"""A predicted curve: what was measured, what the model makes of it, and how surely."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.curves import Curve, draw_curves
from analysis.figures.log_axes import legend_below
from analysis.prediction.curve import PredictedCurve
from analysis.runs.quantities import percent


def draw_prediction(axes: Axes, curve: PredictedCurve, label: str, colour: str = "#0072B2") -> None:
    """Draw measured batch sizes, the model between them and its 95 % interval."""
    sizes = [one.batch_size for one in curve.measured]
    rates = [one.images_per_s for one in curve.measured]
    points = Curve(label, "", "", tuple(sizes), tuple(rates))
    draw_curves(axes, [points], "Images/s", colours={label: colour}, legend=False)
    axes.lines[0].set_linestyle("")
    axes.lines[0].set_marker("o")
    between = np.unique(np.geomspace(min(sizes), max(sizes), 60).round()).astype(int)
    found = [curve.images_per_s(int(batch)) for batch in between]
    values, lows, highs = (np.array(column) for column in zip(*found, strict=True))
    axes.plot(between, values, color="#222222", linewidth=1.1)
    axes.fill_between(between, lows, highs, color="#999999", alpha=0.25, linewidth=0)
    axes.set_ylim(0, 1.5 * max(rates))
    axes.set_title(f"{label}: held out, missed by {percent(curve.held_out_error)}", loc="left",
                   fontsize=7.5, parse_math=False)  # fmt: skip
    legend_below(axes, [
        Line2D([], [], color=colour, marker="o", linestyle="", markersize=4, label="measured"),
        Line2D([], [], color="#222222", linewidth=1.1, label="model"),
        Patch(color="#999999", alpha=0.25, label="95 % interval"),
    ])  # fmt: skip
