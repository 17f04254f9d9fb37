"""Histories of configurations: a panel each, its points, its levels and where they change."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from analysis.comparison.trend import History, Point, Turn
from analysis.figures.axes import FONT_PT, ShownFigure, legend_below, legend_key, plain
from analysis.runs.quantities import counted

#: Panels of a page; of more the changed ones come first.
MAX_PANELS = 12
_PANEL_IN = 1.9
_LEGEND_IN = 0.35
#: Letters of a panel's width.
_MOST_LETTERS = 100
_POINT, _LEVEL, _CHANGE = "#56B4E9", "#0072B2", "#D55E00"


def trend_figure(histories: Sequence[History]) -> Figure:
    """Return a figure of `histories`, a panel each; of more than twelve the changed ones first."""
    shown = sorted(histories, key=lambda one: not one.turns)[:MAX_PANELS]
    figure = ShownFigure(figsize=(6.5, _PANEL_IN * len(shown) + _LEGEND_IN), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, history in zip(panels, shown, strict=True):
        _draw(axes, history)
    if hidden := len(histories) - len(shown):
        figure.suptitle(f"and {counted(hidden, 'configuration')} more", fontsize=FONT_PT)
    legend_below(
        panels[-1],
        [
            legend_key("a run, or the runs of a campaign", color=_POINT, marker="o"),
            legend_key("level", color=_LEVEL, linestyle="-"),
            legend_key("change; shaded: where it may be", color=_CHANGE, linestyle="--"),
        ],
        entry_in=2.1,
    )
    return figure


def _draw(axes: Axes, history: History) -> None:
    points = history.points
    values = [point.value for point in points]
    times = [_days(point) for point in points]
    axes.plot(times, values, "o", color=_POINT, markersize=3.5, zorder=3)
    for start, end, mean in history.levels:
        axes.plot(
            [times[start], times[end - 1]], [mean, mean], color=_LEVEL, linewidth=1.5, zorder=4
        )
    for turn in history.turns:
        late = _days(turn.after) > 0.15 * times[0] + 0.85 * times[-1]
        _mark(axes, turn, before=late)
    low, high = min(values), max(values)
    room = max(high - low, 0.01 * high)
    axes.set_ylim(low - 0.15 * room, high + 0.4 * room)  # the sizes stand above the points
    locator = AutoDateLocator(maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    )
    axes.ticklabel_format(axis="y", useOffset=False)
    plain(axes, grid="y")
    axes.xaxis.get_offset_text().set_fontsize(FONT_PT)
    axes.set_ylabel(history.metric.unit, fontsize=FONT_PT)
    title = history.label if len(history.label) <= _MOST_LETTERS else history.label[:_MOST_LETTERS]
    axes.set_title(title, loc="left", fontsize=FONT_PT, parse_math=False)


def _mark(axes: Axes, turn: Turn, *, before: bool) -> None:
    at = _days(turn.after)
    axes.axvspan(
        _days(turn.earliest), _days(turn.latest),
        color="#F6E3D5", linewidth=0, zorder=1,
    )  # fmt: skip
    axes.axvline(at, color=_CHANGE, linestyle="--", linewidth=1, zorder=2)
    axes.annotate(
        f"{100 * (turn.change.estimate.ratio - 1):+.1f} %",
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-2 if before else 2, -2),
        textcoords="offset points",
        ha="right" if before else "left",
        va="top",
        fontsize=FONT_PT,
        color=_CHANGE,
    )


def _days(point: Point) -> float:
    """Days since 1970, as Matplotlib counts them."""
    return point.started.timestamp() / 86_400
