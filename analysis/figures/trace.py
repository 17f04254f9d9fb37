"""Iteration times one after the other, with what a window's steady-state test made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from analysis.figures.curves import plain
from analysis.figures.log_axes import FONT_PT, say_empty
from analysis.runs.placed import Run
from analysis.statistics import find_outliers, steady_state

#: Vertical room of an outlier that would flatten all else: it is drawn at the edge, by an arrow.
_MOST_OVER_MEDIAN = 1.6


def draw_trace(axes: Axes, run: Run, colour: str = "#0072B2") -> None:
    """Draw one run's iterations in order, its median and its outliers; a drift is said above.

    An iteration of over 1.6 times the median is drawn at the upper edge as a triangle.
    """
    axes.set_title(run.label, loc="left", fontsize=FONT_PT, parse_math=False)
    axes.set_xlabel("Iteration", fontsize=FONT_PT + 0.5)
    axes.set_ylabel("ms", fontsize=FONT_PT + 0.5)
    plain(axes)
    if not run.iteration_times_s:
        say_empty(axes, "no iterations recorded")
        return
    times_ms = 1e3 * np.asarray(run.iteration_times_s)
    median = float(np.median(times_ms))
    edge = _MOST_OVER_MEDIAN * median
    steps = np.arange(1, len(times_ms) + 1)
    axes.plot(steps, np.minimum(times_ms, edge), color=colour, linewidth=0.9, marker=".",
              markersize=2.5 if len(steps) <= 200 else 0)  # fmt: skip
    axes.axhline(median, color="#777777", linewidth=0.7, zorder=1)
    outliers = find_outliers(times_ms)
    places = list(outliers.slow + outliers.fast)
    inside = [place for place in places if times_ms[place] <= edge]
    beyond = [place for place in range(len(times_ms)) if times_ms[place] > edge]
    for found, marker in ((inside, "x"), (beyond, "^")):
        axes.plot(steps[found], np.minimum(times_ms[found], edge), linestyle="", marker=marker,
                  markersize=4, color="#D55E00", zorder=4)  # fmt: skip
    low, high = (
        min(float(times_ms.min()), 0.97 * median),
        max(float(np.minimum(times_ms, edge).max()), 1.03 * median),
    )
    axes.set_ylim(low - 0.08 * (high - low), high + 0.12 * (high - low))
    state = steady_state(run.iteration_times_s)
    if state is not None and state.drifting:
        word = "slower" if state.change > 0 else "faster"
        axes.set_title(f"{run.label}: {100 * abs(state.change):.1f} % {word}, from iteration "
                       f"{state.changed_at}", loc="left", fontsize=FONT_PT,
                       parse_math=False)  # fmt: skip
        axes.axvline((state.changed_at or 0) + 0.5, color="#D55E00", linewidth=0.9, linestyle="--")


def traced_runs(runs: Sequence[Run], most: int = 6) -> list[Run]:
    """Return the runs worth a look: drifting ones first, then those with outliers, then others."""

    def interest(run: Run) -> tuple[float, int]:
        state = steady_state(run.iteration_times_s)
        change = abs(state.change) if state is not None and state.drifting else 0.0
        return change, find_outliers(run.iteration_times_s).count

    timed = [run for run in runs if run.iteration_times_s]
    return sorted(timed, key=interest, reverse=True)[:most]
