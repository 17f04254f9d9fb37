"""The forest plot of a comparison: each pair's ratio with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import ScalarFormatter

from analysis.comparison.judgement import Comparison, Judgement
from analysis.figures.axes import FONT_PT, legend_below, legend_key, log_ticks, plain, say_empty

#: A shape and a colour for each judgement, so that either alone is enough.
_STYLES: Mapping[Judgement, tuple[str, str]] = {
    "better": ("^", "#0072B2"),
    "worse": ("v", "#D55E00"),
    "tie": ("s", "#555555"),
    "undecided": ("o", "#999999"),
}
#: Rows of a page; beyond, the names would touch.
MAX_ROWS = 60
_FEW_DECADES = 8.0


def forest_height_in(rows: int) -> float:
    """Return the height of a figure for so many comparisons."""
    return 1.4 + 0.19 * max(2, min(rows, MAX_ROWS))


def draw_forest(axes: Axes, comparisons: Sequence[Comparison], *, threshold: float) -> None:
    """Draw B / A of each comparison; the band is where a change is of no consequence.

    Of more than 60 those farthest from 1 are drawn, and the axes say how many were not. A marker
    without an interval is a comparison of single runs.
    """
    shown = sorted(comparisons, key=lambda c: -abs(c.estimate.ratio - 1))[:MAX_ROWS]
    shown = [one for one in comparisons if any(one is other for other in shown)]
    for row, one in enumerate(shown):
        marker, colour = _STYLES[one.judgement]
        low, high = one.estimate.low, one.estimate.high
        if low is not None and high is not None:
            axes.plot([low, high], [row, row], color=colour, linewidth=1.4, zorder=3)
        face = "white" if low is None else colour
        shape: dict[str, Any] = {"marker": marker, "markersize": 5, "markerfacecolor": face}
        axes.plot([one.estimate.ratio], [row], linestyle="", color=colour, zorder=4, **shape)
    axes.axvspan(1 / (1 + threshold), 1 + threshold, color="#EEEEEE", zorder=1)
    axes.axvline(1, color="#777777", linewidth=0.8, zorder=2)
    _label(axes, shown, len(comparisons) - len(shown))
    if not shown:
        say_empty(axes, "nothing to compare")
    _legend(axes, shown)


def _label(axes: Axes, shown: Sequence[Comparison], hidden: int) -> None:
    values = [
        value
        for one in shown
        for value in (one.estimate.ratio, one.estimate.low, one.estimate.high)
        if value is not None
    ]
    low, high = min([0.97, *values]), max([1.03, *values])
    axes.set_xlim(low / 1.03, high * 1.03)
    if high / low < _FEW_DECADES:
        axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    else:
        axes.set_xscale("log")
        log_ticks(axes.xaxis, low, high)
    common, names = _names(shown)
    axes.set_yticks(range(len(shown)), names, parse_math=False)
    axes.set_ylim(len(shown) - 0.3, -0.7)
    plain(axes, grid="x")
    axes.tick_params(axis="y", length=0)
    if shown:
        metric = shown[0].metric
        axes.set_xlabel(f"B / A, {metric.unit} ({metric.better} is better)", fontsize=FONT_PT)
    axes.spines["left"].set_visible(False)
    title = [common] * bool(common) + [f"and {hidden} nearer to 1"] * bool(hidden)
    axes.set_title("; ".join(title), loc="left", fontsize=FONT_PT, parse_math=False)


def _names(shown: Sequence[Comparison]) -> tuple[str, list[str]]:
    """What all rows share, and what each row adds, with its numbers of repeats."""
    columns = list(zip(*(one.parts for one in shown), strict=True))
    shared = [len(shown) > 1 and len(set(column)) == 1 for column in columns]
    common = " ".join(column[0] for column, same in zip(columns, shared, strict=True) if same)
    names = []
    for one in shown:
        own = [part for part, same in zip(one.parts, shared, strict=True) if not same]
        counts = (f"{side.repeats(one.metric.name).count}" for side in (one.a, one.b))
        names.append(f"{' '.join(own)} ({':'.join(counts)})")
    return common, names


def _legend(axes: Axes, shown: Sequence[Comparison]) -> None:
    used = {one.judgement: one.word for one in shown}
    handles = [
        legend_key(used[judgement], marker=marker, color=colour, linestyle="-", markersize=5)
        for judgement, (marker, colour) in _STYLES.items()
        if judgement in used
    ]
    legend_below(axes, handles)
