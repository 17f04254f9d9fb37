"""Ratios with their intervals, a row each: two sides, several machines, the knobs of a tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from analysis.comparison.judgement import Comparison, Judgement
from analysis.comparison.machines import MachinePair
from analysis.figures.chart import (
    Axis,
    Band,
    Chart,
    Marks,
    hover,
    key,
    model_key,
    model_legend,
    rule,
)
from analysis.figures.configurations import MAX_ROWS, SIZE_PT, group_hover, hidden_rows, row_chart
from analysis.runs.frame import Row
from analysis.words import percent
from bench.config import rate_unit
from campaigns.tune.result import Interval, TuneResult

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
        _gain_row(f"{one.name}: {one.best_value} over {one.other_value}", one.interval,
                  one.confirmed)
        for one in fresh
    ]  # fmt: skip
    if not rows:
        rows = [_gain_row(one.name, one.interval) for one in result.comparisons if one.interval]
        title = "What the search saw: no gain was confirmed"
        what = "value over the fastest so far (its bounds"
    label = f"{rate_unit(result.sample)}, {what}; higher is better)"
    return ratio_chart(rows, label, title=title, empty="nothing was adopted and confirmed")


def _gain_row(name: str, found: Interval, gain: bool = False) -> RatioRow:
    ratios = {"ratio": found.ratio, "ratio_low": found.low, "ratio_high": found.high}
    look = key("", "#0072B2" if gain else "#777777", "circle", filled=gain)
    words = hover(name, ratios, "ratio ratio_interval")
    return RatioRow(name, found.ratio, (found.low, found.high), look, words)
