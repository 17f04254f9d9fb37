"""Iteration times of windows: their spread, a row each, and their order, a panel each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.figures.charts.chart import Axis, Chart, Panel, Series, rule
from analysis.figures.charts.row_charts import ENTRY_IN, MAX_ROWS, row_chart
from analysis.figures.style import OTHER_MODELS, LegendEntry, Marker, model_colours
from analysis.runs.quantities import counted, interval, plus_minus, three_digits, times
from analysis.runs.run import Run
from analysis.statistics import find_outliers

#: Iterations beyond so many medians would flatten everything else: they are drawn at the edge.
_EDGE = 1.6
#: Windows whose iterations are shown in order.
_TRACES = 6
#: More iterations than this are a line without markers.
_MARKED = 200
#: So many iterations have a tick each, at most.
_TICKED = 10
_CROSS, _RIGHT, _UP = (
    Marker("x", "x-thin-open"),
    Marker(">", "triangle-right"),
    Marker("^", "triangle-up"),
)
_DOT = Marker(".", "circle")
_GREY, _ORANGE = "#777777", "#D55E00"


def distributions_chart(runs: Sequence[Run], *, colours: Mapping[str, str] | None = None) -> Chart:
    """Return each window's iteration times over its median: 5 to 95 %, quartiles, outliers.

    The axis ends at 1.6 times the median; an outlier beyond is an arrow at that edge.
    """
    timed = [run for run in runs if run.iteration_times_s]
    palette = colours or model_colours(run.arch for run in timed)
    shown = timed[:MAX_ROWS]
    series = [
        one
        for row, run in enumerate(shown)
        for one in _distribution(run, row, palette.get(run.arch, OTHER_MODELS))
    ]
    ends = [1.0, *(x for one in series for x in one.xs)]
    margin = 0.05 * (max(ends) - min(ends)) or 0.05
    x = Axis(
        label="Iteration time / median",
        limits=(min(ends) - margin, min(max(ends) + margin, _EDGE + 0.01)),
    )
    names = [run.label for run in shown]
    middle = rule(x=1.0, limits=(max(len(names), 1) - 0.3, -0.9), colour=_GREY, words="the median")
    key = "#555555"
    legend = (
        LegendEntry("5 to 95 %", key, line_pt=0.9),
        LegendEntry("quartiles", key, line_pt=4.0),
        LegendEntry("outlier", key, _CROSS),
        LegendEntry("outlier beyond the axis", key, _RIGHT),
    )
    shapes = [middle, *series] if series else []
    return row_chart(names, len(timed) - len(shown), shapes, x, legend, ENTRY_IN)


def _distribution(run: Run, row: int, colour: str) -> list[Series]:
    times_ms = 1e3 * np.asarray(run.iteration_times_s)
    median = float(np.median(times_ms))
    ends_ms = [float(end) for end in np.percentile(times_ms, [5, 25, 75, 95])]
    low, first, third, high = (end / median for end in ends_ms)
    found = find_outliers(run.iteration_times_s)
    deviation = float(times_ms.std(ddof=1)) if len(times_ms) > 1 else None
    words = (
        run.label,
        f"run {run.name}",
        f"{plus_minus(float(times_ms.mean()), deviation)} ms, mean ± SD of "
        f"{counted(len(times_ms), 'iteration')}",
        f"median {three_digits(median)} ms, quartiles {interval(*ends_ms[1:3])} ms, "
        f"5 to 95 %: {interval(ends_ms[0], ends_ms[3])} ms",
        counted(found.count, "outlier"),
    )
    look: dict[str, Any] = {"colour": colour, "group": run.arch}
    hover = (words,) * 3
    return [
        Series(xs=(low, 1.0, high), ys=(row,) * 3, line_pt=0.9, hover=hover, **look),
        Series(xs=(first, 1.0, third), ys=(row,) * 3, line_pt=4.0, hover=hover, **look),
        *(
            Series(
                xs=(min(times_ms[place] / median, _EDGE),),
                ys=(row,),
                shape=_RIGHT if times_ms[place] / median > _EDGE else _CROSS,
                size_pt=3.5,
                hover=((run.label, f"run {run.name}", _iteration(place, times_ms, median)),),
                **look,
            )
            for place in found.slow + found.fast
        ),
    ]


def _iteration(place: int, times_ms: NDArray[np.float64], median_ms: float) -> str:
    ratio = times(times_ms[place] / median_ms)
    return f"iteration {place + 1}: {three_digits(times_ms[place])} ms, {ratio} the median"


def trace_panel(run: Run, colour: str = "#0072B2") -> Panel:
    """Return one run's iterations in order, its median and its outliers; a drift is in the title.

    An iteration of over 1.6 times the median is drawn at the upper edge as a triangle.
    """
    times_ms = 1e3 * np.asarray(run.iteration_times_s)
    count = len(times_ms)
    if not count:
        axes = (Axis(label=label, limits=(0.0, 1.0)) for label in ("Iteration", "ms"))
        return Panel(
            x=next(axes), y=next(axes), series=(), empty="no iterations recorded", title=run.label
        )
    median = float(np.median(times_ms))
    edge = _EDGE * median
    held = np.minimum(times_ms, edge)
    low = min(float(times_ms.min()), 0.97 * median)
    high = max(float(held.max()), 1.03 * median)
    margin = 0.05 * max(count - 1, 1)
    x = Axis(
        label="Iteration",
        limits=(1 - margin, count + margin),
        ticks=tuple(range(1, count + 1)) if count <= _TICKED else None,
    )
    y = Axis(label="ms", limits=(low - 0.08 * (high - low), high + 0.12 * (high - low)))
    # the title says whose they are: a name at each of many iterations would make a page heavy
    words = [(_iteration(place, times_ms, median),) for place in range(count)]
    outliers = find_outliers(times_ms)
    inside = [place for place in (*outliers.slow, *outliers.fast) if times_ms[place] <= edge]
    beyond = [place for place in range(count) if times_ms[place] > edge]

    def marks(places: Sequence[int], shape: Marker | None, colour: str, **look: Any) -> Series:
        return Series(
            xs=tuple(place + 1 for place in places),
            ys=tuple(float(held[place]) for place in places),
            hover=tuple(words[place] for place in places),
            colour=colour,
            shape=shape,
            **look,
        )

    series = [
        rule(y=median, limits=x.limits, colour=_GREY, words=f"median {three_digits(median)} ms"),
        marks(range(count), _DOT if count <= _MARKED else None, colour, line_pt=0.9, size_pt=2.5),
    ]
    series += [
        marks(places, shape, _ORANGE)
        for places, shape in ((inside, _CROSS), (beyond, _UP))
        if places
    ]
    title = run.label
    if (drift := run.drift) is not None:
        word = "slower" if drift.change > 0 else "faster"
        change = f"{100 * abs(drift.change):.1f} % {word}, from iteration {drift.changed_at}"
        title = f"{run.label}: {change}"
        at = drift.changed_at + 0.5
        series.append(rule(x=at, limits=y.limits, colour=_ORANGE, words=change, dashed=True))
    return Panel(x=x, y=y, series=tuple(series), empty="", title=title)


def traced_runs(runs: Sequence[Run]) -> list[Run]:
    """Return at most six runs: drifting ones first, then those with outliers, then others."""

    def interest(run: Run) -> tuple[float, int]:
        drift = run.drift
        change = abs(drift.change) if drift is not None else 0.0
        return change, find_outliers(run.iteration_times_s).count

    return sorted(runs, key=interest, reverse=True)[:_TRACES]
