"""Charts of times: iterations of windows, spread and in order; and histories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from analysis.comparison.history import History
from analysis.figures.chart import (
    KEY_GREY,
    OTHER_MODELS,
    Axis,
    Band,
    Chart,
    Marks,
    Panel,
    rule,
)
from analysis.figures.rows import MAX_ROWS, across_rows, hidden_rows, row_chart
from analysis.presentation.words import counted, interval, plus_minus, three_digits, times
from analysis.runs.run import Run
from bench.statistics.series import find_outliers

#: Iterations beyond so many medians would flatten everything else: they are drawn at the edge.
_EDGE = 1.6
#: Configurations of a page; of more the changed ones come first.
MAX_HISTORIES = 12
_GREY, _ORANGE = "#777777", "#D55E00"
_OUTLIER, _BEYOND = "x-thin-open", "triangle-right"


def distributions_chart(runs: Sequence[Run], colours: Mapping[str, str]) -> Chart:
    """Return each window's iteration times over its median: 5 to 95 %, quartiles, outliers.

    The axis ends at 1.6 times the median; an outlier beyond is an arrow at that edge.
    """
    timed = [run for run in runs if run.iteration_times_s]
    shown = timed[:MAX_ROWS]
    series = [
        mark
        for row, run in enumerate(shown)
        for mark in _distribution(run, row, colours.get(run.arch, OTHER_MODELS))
    ]
    shares = [1.0, *(x for mark in series for x in mark.xs)]
    margin = 0.05 * (max(shares) - min(shares)) or 0.05
    limits = (min(shares) - margin, min(max(shares) + margin, _EDGE + 0.01))
    return row_chart(
        [run.label for run in shown],
        [across_rows(1.0, shown, "the median"), *series] if shown else [],
        Axis(label="Iteration time / median", limits=limits),
        legend=(
            Marks("5 to 95 %", KEY_GREY, line_pt=0.9),
            Marks("quartiles", KEY_GREY, line_pt=4.0),
            Marks("outlier", KEY_GREY, _OUTLIER),
            Marks("outlier beyond the axis", KEY_GREY, _BEYOND),
        ),
        title=hidden_rows(len(timed)),
    )


def _distribution(run: Run, row: int, colour: str) -> Iterator[Marks]:
    times_ms = 1e3 * np.asarray(run.iteration_times_s)
    median = float(np.median(times_ms))
    low, first, third, high = (float(end) for end in np.percentile(times_ms, [5, 25, 75, 95]))
    outliers = find_outliers(run.iteration_times_s)
    deviation = float(times_ms.std(ddof=1)) if len(times_ms) > 1 else None
    whose = f"{run.label}\nrun {run.name}"
    words = (
        f"{whose}\n{plus_minus(float(times_ms.mean()), deviation)} ms, mean ± SD of "
        f"{counted(len(times_ms), 'iteration')}\n"
        f"median {three_digits(median)} ms, quartiles {interval(first, third)} ms, "
        f"5 to 95 %: {interval(low, high)} ms\n{counted(len(outliers), 'outlier')}"
    )
    for index in outliers:
        ratio = times_ms[index] / median
        mark = Marks(run.arch, colour, _BEYOND if ratio > _EDGE else _OUTLIER, size_pt=3.5)
        said = f"{whose}\n{_iteration(index, times_ms[index], median)}"
        yield replace(mark, xs=(min(ratio, _EDGE),), ys=(row,), hover=(said,))
    for begin, end, line_pt in ((low, high, 0.9), (first, third, 4.0)):
        yield rule((begin / median, end / median), (row, row), colour, words,
                   group=run.arch, line_pt=line_pt)  # fmt: skip


def _iteration(index: int, time_ms: float, median_ms: float) -> str:
    of_median = times(time_ms / median_ms)
    return f"iteration {index + 1}: {three_digits(time_ms)} ms, {of_median} the median"


def trace_panel(run: Run, colour: str = "#0072B2") -> Panel:
    """Return one run's iterations in order, its median and its outliers.

    An iteration of over 1.6 times the median is drawn at the upper edge as a triangle.
    """
    times_ms = 1e3 * np.asarray(run.iteration_times_s)
    count, median = len(times_ms), float(np.median(times_ms))
    held = np.minimum(times_ms, _EDGE * median)
    low, high = min(float(held.min()), 0.97 * median), max(float(held.max()), 1.03 * median)
    margin = 0.05 * max(count - 1, 1)
    # a tick for each of a few iterations
    ticks = {float(at): f"{at}" for at in range(1, count + 1)} if count <= 10 else None
    x = Axis(label="Iteration", limits=(1 - margin, count + margin), ticks=ticks)
    y = Axis(label="ms", limits=(low - 0.08 * (high - low), high + 0.12 * (high - low)))
    series = [rule(x.limits, (median, median), _GREY, f"median {three_digits(median)} ms")]
    beyond = [index for index in range(count) if times_ms[index] > held[index]]
    inside = [index for index in find_outliers(times_ms) if index not in beyond]
    # many iterations are a line without markers
    dots = Marks("", colour, "circle" if count <= 200 else "", line_pt=0.9, size_pt=1.3)
    for indices, look in (
        (range(count), dots),
        (inside, Marks("", _ORANGE, _OUTLIER)),
        (beyond, Marks("", _ORANGE, "triangle-up")),
    ):
        xs, ys = tuple(index + 1 for index in indices), tuple(float(held[i]) for i in indices)
        # the title says whose they are: a name at each of many iterations would make a page heavy
        hover = tuple(_iteration(index, times_ms[index], median) for index in indices)
        series += [replace(look, xs=xs, ys=ys, hover=hover)] if xs else []
    return Panel(x=x, y=y, series=tuple(series), title=run.label)


def traced_runs(runs: Sequence[Run]) -> list[Run]:
    """Return at most six runs: drifting ones first, then those with most outliers."""
    drifts = {run.name for run in runs for finding in run.findings if finding.code == "drift"}
    outliers = {run.name: len(find_outliers(run.iteration_times_s)) for run in runs}
    return sorted(runs, key=lambda run: (run.name not in drifts, -outliers[run.name]))[:6]


#: What a history shows, as its legend has it.
_POINT, _LEVEL, _CHANGE = (
    Marks("a run, or the runs of a campaign", "#56B4E9", "circle", size_pt=3.5),
    Marks("level", "#0072B2", line_pt=1.5),
    Marks("change; shaded: where it may be", _ORANGE, line_pt=1.0, dashed=True),
)


def trend_chart(histories: Sequence[History]) -> Chart:
    """Return a chart of `histories`, a panel each: their points, levels and changes.

    Of more than twelve the changed ones come first, and the others are counted.
    """
    shown = sorted(histories, key=lambda history: not history.changes)[:MAX_HISTORIES]
    panels = [_history_panel(history) for history in shown]
    hidden = len(histories) - len(shown)
    more = f"and {counted(hidden, 'configuration')} more" if hidden else ""
    last = replace(panels[-1], legend=(_POINT, _LEVEL, _CHANGE))
    last = replace(last, x=replace(last.x, label=more))
    return Chart((*panels[:-1], last), 6.5, 1.9 * len(shown) + 0.35)


def _history_panel(history: History) -> Panel:
    days = tuple(point.started.timestamp() / 86_400 for point in history.points)
    values = tuple(point.value for point in history.points)
    room = max(max(values) - min(values), 0.01 * max(values))
    low, high = min(values) - 0.15 * room, max(values) + 0.4 * room  # sizes stand above the points
    margin = 0.05 * (days[-1] - days[0]) or 0.5
    unit = history.metric.unit
    hovers = (
        f"{point.started:%Y-%m-%d %H:%M}\n{three_digits(point.value)} {unit}"
        for point in history.points
    )
    series, shades = [replace(_POINT, xs=days, ys=values, hover=tuple(hovers))], []
    for start, end, mean in history.levels:
        words, ends = f"level {three_digits(mean)} {unit}", (days[start], days[end - 1])
        series.append(rule(ends, (mean, mean), _LEVEL.colour, words, line_pt=1.5, group="level"))
    for change in history.changes:
        at, words = days[change.index], f"{100 * (change.estimate.ratio - 1):+.1f} %"
        line = rule((at, at), (high, low), _ORANGE, words, line_pt=1.0, dashed=True, group="change")
        # its size stands near the top
        series += [line, Marks("", _ORANGE, xs=(at,), ys=(high - 0.1 * room,), names=(words,))]
        if change.first < change.last:
            shades.append(Band(days[change.first], days[change.last], "#DB8F57"))
    return Panel(
        x=Axis(label="", limits=(days[0] - margin, days[-1] + margin), scale="date"),
        y=Axis(label=unit, limits=(low, high)),
        series=tuple(series),
        bands=tuple(shades),
        title=history.label[:100],
    )
