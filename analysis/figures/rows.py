"""Charts with a row each: ratios, iteration times, parts of a step; and panels of times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from analysis.account import StepAccount
from analysis.comparison.history import History
from analysis.comparison.judgement import Comparison, Judgement
from analysis.comparison.machines import MachinePair
from analysis.figures.chart import (
    KEY_GREY,
    OTHER_MODELS,
    Axis,
    Band,
    Chart,
    Marks,
    Panel,
    hover,
    key,
    model_key,
    model_legend,
    rule,
)
from analysis.figures.configurations import MAX_ROWS, SIZE_PT, group_hover, hidden_rows, row_chart
from analysis.runs.frame import Row
from analysis.runs.run import Run
from analysis.words import counted, interval, percent, plus_minus, three_digits, times
from bench.config import rate_unit
from bench.statistics.ratios import RatioEstimate
from bench.statistics.series import find_outliers
from campaigns.tune.result import TuneResult

# Ratios

#: A shape and a colour for each judgement, so that either alone is enough.
_JUDGED: Mapping[Judgement, tuple[str, str]] = {
    "better": ("triangle-up", "#0072B2"),
    "worse": ("triangle-down", "#D55E00"),
    "tie": ("square", "#555555"),
    "undecided": ("circle", "#999999"),
}
#: Comparisons of one figure.
_MAX_COMPARISONS = 60
_LINE_PT = 1.4


class RatioRow(NamedTuple):
    """A ratio in the look of its marker, with the ends of its interval or None without repeats.

    Rows of another `block` stand a little farther away.
    """

    name: str
    ratio: float
    ends: tuple[float | None, float | None]
    look: Marks
    hover: str
    block: object = None


def ratio_chart(
    rows: Sequence[RatioRow],
    label: str,
    *,
    one: str = "no difference",
    threshold: float = 0.0,
    **look: Any,
) -> Chart:
    """Return the ratios around 1, from the top.

    `one` says what a ratio of 1 means. Ratios within `threshold` are of no consequence: a band. A
    marker is open where its ratio has no interval. `look` is of `row_chart`.
    """
    heights: list[float] = []
    for index, row in enumerate(rows):
        gap = 0.6 if index and row.block != rows[index - 1].block else 0.0
        heights.append(heights[-1] + 1.0 + gap if heights else 0.0)
    bottom, top = max(heights, default=0.0) + 0.7, -0.9
    series = [rule((1.0, 1.0), (bottom, top), "#777777", one)] if rows else []
    for row, y in zip(rows, heights, strict=True):
        low, high = row.ends
        mark = replace(row.look, xs=(row.ratio,), ys=(y,), hover=(row.hover,), size_pt=SIZE_PT)
        if low is None or high is None:
            mark = replace(mark, filled=False)
        else:
            line = key(mark.group, mark.colour, line_pt=_LINE_PT)
            series.append(replace(line, xs=(low, high), ys=(y, y)))
        series.append(replace(mark, line_pt=0.0))
    within = (1 / (1 + threshold), 1 + threshold)
    words = f"within {percent(threshold)}"
    bands = [Band(within, (bottom, bottom), (top, top), "#AAAAAA", words)] if threshold else []
    held = (end for row in rows for end in (row.ratio, *row.ends) if end is not None)
    axis = _ratio_axis(label, [*within, *held])
    return row_chart([row.name for row in rows], series, axis, at=heights, bands=bands, **look)


def _ratio_axis(label: str, held: Sequence[float]) -> Axis:
    """An axis that holds these; with even steps where it is too short for powers of ten."""
    low, high = min(held), max(held)
    margin, ticks = max((high / low) ** 0.08, 1.005), None
    if high / low <= 5:
        least = max(high - low, 0.01) / 5
        power = 10 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
        first, last = max(1, math.floor(low / step)), math.ceil(high / step)
        ticks = tuple(float(f"{index * step:.6g}") for index in range(first, last + 1))
    return Axis(label=label, limits=(low / margin, high * margin), scale="log", ticks=ticks)


def comparison_chart(comparisons: Sequence[Comparison], threshold: float) -> Chart:
    """Return B / A of each comparison; of more than 60 those farthest from 1."""
    farthest = sorted(comparisons, key=lambda one: -abs(one.estimate.ratio - 1))[:_MAX_COMPARISONS]
    shown = [one for one in comparisons if any(one is other for other in farthest)]
    columns = list(zip(*(one.parts for one in shown), strict=True))
    shared = [len(shown) > 1 and len(set(column)) == 1 for column in columns]
    rows, looks = [], {}
    for one in shown:
        shape, colour = _JUDGED[one.judgement]
        looks[one.judgement] = look = key(one.word, colour, shape, line_pt=_LINE_PT)
        rest = [part for part, same in zip(one.parts, shared, strict=True) if not same]
        counts = (f"{side.repeats(one.metric.name).count}" for side in (one.a, one.b))
        name = f"{' '.join(rest)} ({':'.join(counts)})"
        words = hover(one.label, one.facts, "b_over_a ratio_interval verdict because")
        rows.append(RatioRow(name, one.estimate.ratio, one.estimate.ends, look, words))
    common = " ".join(column[0] for column, same in zip(columns, shared, strict=True) if same)
    hidden = len(comparisons) - len(shown)
    metric = shown[0].metric if shown else None
    return ratio_chart(
        rows,
        f"B / A, {metric.unit} ({metric.better} is better)" if metric else "B / A",
        threshold=threshold,
        legend=[looks[judgement] for judgement in _JUDGED if judgement in looks],
        title="; ".join(filter(None, (common, f"and {hidden} nearer to 1" if hidden else ""))),
        empty="nothing to compare",
    )


def speed_up_chart(found: Sequence[tuple[MachinePair, Row]], colours: Mapping[str, str]) -> Chart:
    """Return how many times as fast as the reference machines are at these configurations.

    Colour is the model, the marker the precision; it is open where there is no interval. Rows of
    one model and precision stand together, within them those of one batch size.
    """
    ordered = sorted(
        found, key=lambda one: (*one[1]["series"], one[1]["batch_size"] or 0, one[0].b)
    )[:MAX_ROWS]
    reference, groups = ordered[0][0].a, [row["comparison"].b for _, row in ordered]
    return ratio_chart(
        [_shared_row(pair, row, colours) for pair, row in ordered],
        f"Times as fast as {reference}",
        legend=model_legend(model_key(group, colours) for group in groups),
        one=f"{reference}: 1",
        title=hidden_rows(len(found)),
    )


def _shared_row(pair: MachinePair, row: Row, colours: Mapping[str, str]) -> RatioRow:
    """A configuration of two machines; hovering has every number of it."""
    a, b, ends = row["comparison"].a, row["comparison"].b, (row["ratio_low"], row["ratio_high"])
    also = f" ({b.distinction})" if b.distinction else ""
    name = f"{b.arch}{also} {row['precision']} batch {b.batch_size}, {pair.b}"
    of_a = {key.removeprefix("reference_"): row[key] for key in row if key[:10] == "reference_"}
    both = hover(f"{name}, over {pair.a}", row, "ratio ratio_interval verdict")
    words = "\n".join([both, group_hover(b, row), group_hover(a, of_a)])
    return RatioRow(name, row["ratio"], ends, model_key(b, colours), words, block=row["series"])


def tuning_chart(result: TuneResult) -> Chart:
    """Return what each knob gave by fresh runs; without any what the search saw, no gain."""
    title, what = "What each knob gave, from fresh runs", "tuned over put back (95 % interval"
    fresh = (*([result.confirmed] if result.confirmed else []), *result.ablation)
    rows = [
        _gain_row(f"{one.name}: {one.best_value} over {one.other_value}", one.estimate,
                  one.confirmed)
        for one in fresh
    ]  # fmt: skip
    if not rows:
        rows = [_gain_row(one.name, one.estimate) for one in result.comparisons if one.estimate]
        title = "What the search saw: no gain was confirmed"
        what = "value over the fastest so far (95 % interval"
    label = f"{rate_unit(result.sample)}, {what}; higher is better)"
    return ratio_chart(rows, label, title=title, empty="nothing was adopted and confirmed")


def _gain_row(name: str, estimate: RatioEstimate, gain: bool = False) -> RatioRow:
    low, high = estimate.ends
    ratios = {"ratio": estimate.ratio, "ratio_low": low, "ratio_high": high}
    look = key("", "#0072B2" if gain else "#777777", "circle", filled=gain)
    words = hover(name, ratios, "ratio ratio_interval")
    return RatioRow(name, estimate.ratio, (low, high), look, words)


# Times

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
        one
        for row, run in enumerate(shown)
        for one in _distribution(run, row, colours.get(run.arch, OTHER_MODELS))
    ]
    shares = [1.0, *(x for one in series for x in one.xs)]
    margin = 0.05 * (max(shares) - min(shares)) or 0.05
    limits = (min(shares) - margin, min(max(shares) + margin, _EDGE + 0.01))
    middle = rule((1.0, 1.0), (len(shown) - 0.3, -0.9), _GREY, "the median")
    return row_chart(
        [run.label for run in shown],
        [middle, *series] if shown else [],
        Axis(label="Iteration time / median", limits=limits),
        legend=(
            key("5 to 95 %", KEY_GREY, line_pt=0.9),
            key("quartiles", KEY_GREY, line_pt=4.0),
            key("outlier", KEY_GREY, _OUTLIER),
            key("outlier beyond the axis", KEY_GREY, _BEYOND),
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
        mark = key(run.arch, colour, _BEYOND if ratio > _EDGE else _OUTLIER, size_pt=3.5)
        said = f"{whose}\n{_iteration(index, times_ms[index], median)}"
        yield replace(mark, xs=(min(ratio, _EDGE),), ys=(row,), hover=(said,))
    for ends, line_pt in (((low, median, high), 0.9), ((first, median, third), 4.0)):
        line = key(run.arch, colour, line_pt=line_pt, ys=(row,) * 3, hover=(words,) * 3)
        yield replace(line, xs=tuple(end / median for end in ends))


def _iteration(index: int, time_ms: float, median_ms: float) -> str:
    of_median = times(time_ms / median_ms)
    return f"iteration {index + 1}: {three_digits(time_ms)} ms, {of_median} the median"


def trace_panel(run: Run, colour: str = "#0072B2") -> Panel:
    """Return one run's iterations in order, its median and its outliers.

    An iteration of over 1.6 times the median is drawn at the upper edge as a triangle.
    """
    times_ms = 1e3 * np.asarray(run.iteration_times_s)
    count, median = len(times_ms), float(np.median(times_ms))
    edge = _EDGE * median
    held = np.minimum(times_ms, edge)
    low = min(float(times_ms.min()), 0.97 * median)
    high = max(float(held.max()), 1.03 * median)
    margin = 0.05 * max(count - 1, 1)
    # a tick for each of a few iterations
    ticks = tuple(range(1, count + 1)) if count <= 10 else None
    x = Axis(label="Iteration", limits=(1 - margin, count + margin), ticks=ticks)
    y = Axis(label="ms", limits=(low - 0.08 * (high - low), high + 0.12 * (high - low)))
    series = [rule(x.limits, (median, median), _GREY, f"median {three_digits(median)} ms")]
    inside = [index for index in find_outliers(times_ms) if times_ms[index] <= edge]
    beyond = [index for index in range(count) if times_ms[index] > edge]
    # many iterations are a line without markers
    dots = key("", colour, "circle" if count <= 200 else "", line_pt=0.9, size_pt=1.3)
    for indices, look in (
        (range(count), dots),
        (inside, key("", _ORANGE, _OUTLIER)),
        (beyond, key("", _ORANGE, "triangle-up")),
    ):
        xs, ys = tuple(index + 1 for index in indices), tuple(float(held[i]) for i in indices)
        # the title says whose they are: a name at each of many iterations would make a page heavy
        hover = tuple(_iteration(index, times_ms[index], median) for index in indices)
        series += [replace(look, xs=xs, ys=ys, hover=hover)] if xs else []
    return Panel(x=x, y=y, series=tuple(series), title=run.label)


def traced_runs(runs: Sequence[Run]) -> list[Run]:
    """Return at most six runs: drifting ones first, then those with outliers, then others."""

    def interest(run: Run) -> tuple[bool, int]:
        drifts = any(finding.code == "drift" for finding in run.findings)
        return drifts, len(find_outliers(run.iteration_times_s))

    return sorted(runs, key=interest, reverse=True)[:6]


#: What an account's bar shows, by the kind of its parts: words and a colour.
_PARTS: Mapping[str, tuple[str, str]] = {
    "roof": ("at the roof", "#0072B2"),
    "traffic": ("unfused traffic", "#56B4E9"),
    "ops": ("ops below their roof", "#E69F00"),
    "unknown work": ("work not known", "#CCCCCC"),
    "communication": ("communication, copies", "#CC79A7"),
    "input": ("waiting for the loader", "#000000"),
    "idle": ("device idle", "#D55E00"),
    "host": ("host between ops", "#999999"),
    "not explained": ("not explained", "#F0E442"),
    "profiling": ("the profiler", "#DDDDDD"),
    "cache": ("faster than their roof", "#009E73"),
}


#: Of the bar of a disturbed account.
_UNSURE_OPACITY = 0.45


def account_chart(accounts: Sequence[tuple[str, StepAccount]]) -> Chart:
    """Return a bar for each named step, its parts end to end; what takes time off is left of 0.

    The bar of a disturbed account is pale and broken, and its name says that it is not sure.
    """
    series, legend, longest = [], dict[str, Marks](), 0.0
    for row, (name, account) in enumerate(accounts[:MAX_ROWS]):
        ends_ms = {True: 0.0, False: 0.0}
        for part in sorted(account.parts, key=lambda part: list(_PARTS).index(part.kind)):
            (words, colour), begin_ms = _PARTS[part.kind], ends_ms[part.time_s > 0]
            end_ms = ends_ms[part.time_s > 0] = begin_ms + 1e3 * part.time_s
            legend[words] = look = key(words, colour, line_pt=7.0)
            share = percent(part.time_s / account.step_time_s)
            said = f"{name}\n{part.name}: {three_digits(1e3 * part.time_s)} ms, {share}"
            if account.is_disturbed:
                look = replace(look, dashed=True, opacity=_UNSURE_OPACITY)
            line = replace(look, xs=(begin_ms, end_ms), ys=(row, row), hover=(said,) * 2)
            series.append(line)
        longest = max(longest, ends_ms[True])
    left = min((end for one in series for end in one.xs), default=0.0)
    axis = Axis(label="ms of a step", limits=(1.03 * left, 1.03 * longest))
    names = [f"{name}{' (not sure)' if account.is_disturbed else ''}"
             for name, account in accounts[:MAX_ROWS]]  # fmt: skip
    entries = [legend[words] for words, _ in _PARTS.values() if words in legend]
    return row_chart(names, series, axis, legend=entries, title=hidden_rows(len(accounts)))


#: What a history shows, as its legend has it.
_POINT, _LEVEL, _CHANGE = (
    key("a run, or the runs of a campaign", "#56B4E9", "circle", size_pt=3.5),
    key("level", "#0072B2", line_pt=1.5),
    key("change; shaded: where it may be", _ORANGE, line_pt=1.0, dashed=True),
)


def trend_chart(histories: Sequence[History]) -> Chart:
    """Return a chart of `histories`, a panel each: their points, levels and changes.

    Of more than twelve the changed ones come first, and the others are counted.
    """
    shown = sorted(histories, key=lambda one: not one.changes)[:MAX_HISTORIES]
    panels = [_history_panel(history) for history in shown]
    hidden = len(histories) - len(shown)
    more = f"and {counted(hidden, 'configuration')} more" if hidden else ""
    last = replace(panels[-1], legend=(_POINT, _LEVEL, _CHANGE), legend_entry_in=2.1)
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
    series = [replace(_POINT, xs=days, ys=values, hover=tuple(hovers))]
    for start, end, mean in history.levels:
        words, ends = f"level {three_digits(mean)} {unit}", (days[start], days[end - 1])
        series.append(rule(ends, (mean, mean), _LEVEL.colour, words, line_pt=1.5, group="level"))
    for found in history.changes:
        at, words = days[found.index], f"{100 * (found.estimate.ratio - 1):+.1f} %"
        line = rule((at, at), (high, low), _ORANGE, words, line_pt=1.0, dashed=True, group="change")
        series.append(replace(line, names=("", words, *[""] * (len(line.xs) - 2))))  # near the top
    shades = (
        Band((days[found.first], days[found.last]), (low, low), (high, high), "#DB8F57")
        for found in history.changes
        if found.first < found.last
    )
    return Panel(
        x=Axis(label="", limits=(days[0] - margin, days[-1] + margin), scale="date"),
        y=Axis(label=unit, limits=(low, high)),
        series=tuple(series),
        bands=tuple(shades),
        title=history.label[:100],
    )
