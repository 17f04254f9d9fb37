"""Charts with a row each: configurations, their ratios, and the parts of a step.

Colour is the model, the marker the precision.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from analysis.account import StepAccount
from analysis.comparison.across import MachinePair
from analysis.comparison.judgement import Comparison, Judgement
from analysis.figures.chart import (
    KEY_GREY,
    Axis,
    Band,
    Chart,
    Marks,
    Panel,
    hover,
    log_axis,
    model_key,
    model_legend,
    rule,
)
from analysis.presentation.columns import C, Row
from analysis.presentation.words import percent, three_digits
from analysis.runs.groups import Group, fastest, group_row
from analysis.runs.run import TOKENS_PER_S
from bench.config import common_sample, rate_column, rate_unit
from bench.statistics.ratios import RatioEstimate
from campaigns.trials import TuneResult

#: Rows that a page holds.
MAX_ROWS = 45
#: A longer name of a row is of several lines, so that its bars have the larger half of the page.
_ROW_LETTERS = 44
_SIZE_PT, _LINE_PT = 4.5, 1.4
_MAX_NAMES = 4
#: What hovering shows of a configuration, as far as a figure has it.
_SHOWN = (C.ratio_to_smallest, C.attained_gflops, C.fraction_of_peak, C.intensity_counted,
          C.intensity, C.peak_memory_mb, C.modelled_gb, C.scatter, C.rate_mean,
          C.throughput_tokens_per_s, C.repeats, C.energy, C.cost, C.runs)  # fmt: skip


def group_hover(group: Group, facts: Mapping[str, Any] | None = None) -> str:
    """Return what hovering says of a configuration: its throughput, its runs, and `facts`."""
    names = group.names
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    row = {
        **(facts or {}),
        **group_row(group, rate_column(group.sample)),
        TOKENS_PER_S: group.mean(TOKENS_PER_S),
        "runs": f"{', '.join(names[:_MAX_NAMES])}{more}",
    }
    return hover(group.label, row, _SHOWN, group.sample)


def row_chart(
    names: Sequence[str],
    series: Sequence[Marks],
    x: Axis,
    *,
    legend: Sequence[Marks] = (),
    title: str = "",
    bands: Sequence[Band] = (),
    empty: str = "no run has this",
) -> Chart:
    """Return a chart with a row per name, from the top, at heights 0, 1, ..."""
    rows = tuple("\n".join(textwrap.wrap(name, _ROW_LETTERS)) for name in names)
    lines = max((row.count("\n") + 1 for row in rows), default=1)
    panel = Panel(
        x=x,
        y=Axis(label="", limits=_heights(rows), ticks=dict(enumerate(rows))),
        series=tuple(series),
        empty="" if series else empty,
        bands=tuple(bands),
        title=title,
        legend=tuple(legend) if names else (),
    )
    return Chart((panel,), 6.5, 1.3 + (0.03 + 0.16 * lines) * max(2, len(rows)))


def _heights(rows: Sequence[object]) -> tuple[float, float]:
    return (max(len(rows), 1) - 0.3, -0.9)


def across_rows(x: float, rows: Sequence[object], words: str) -> Marks:
    """Return a thin line over all rows that says `words`."""
    return rule((x, x), _heights(rows), "#777777", words)


def hidden_rows(count: int) -> str:
    """Return where the rows are that a chart has no room for."""
    return f"and {count - MAX_ROWS} more rows in the tables" if count > MAX_ROWS else ""


# Configurations

_DATA = ("images from disk", "synthetic")


def models_chart(groups: Sequence[Group], colours: Mapping[str, str]) -> Chart:
    """Return each machine's and model's fastest batch: samples/s, a marker per precision.

    Beside each marker stands its batch size.
    """
    best = fastest(groups)
    every = list(dict.fromkeys((env, model) for env, model, _ in sorted(best)))
    rows = {name: row for row, name in enumerate(every[:MAX_ROWS])}
    series = [
        replace(_marker(group, rows[env, model], colours), names=(f"{group.batch_size}",))
        for (env, model, _), group in best.items()
        if (env, model) in rows
    ]
    return row_chart(
        [f"{env}  {model}" for env, model in rows],
        series,
        _rate_axis(best.values()),
        legend=[entry for entry in model_legend(series) if entry.shape],
        title=hidden_rows(len(every)),
    )


def _marker(group: Group, row: int, colours: Mapping[str, str]) -> Marks:
    look = model_key(group, colours, size_pt=_SIZE_PT, hover=(group_hover(group),))
    return replace(look, xs=(group.samples_per_s,), ys=(row,))


def _rate_axis(groups: Collection[Group]) -> Axis:
    unit = rate_unit(common_sample(group.sample for group in groups))
    return log_axis(unit.capitalize(), [group.samples_per_s for group in groups])


def variability_chart(machines: Sequence[Row]) -> Chart:
    """Return the deviation between repeats: a dot per configuration, a bar pooled by machine.

    `machines` are rows of `scatter_rows`.
    """
    dot = Marks("one configuration", KEY_GREY, "circle", size_pt=3.5)
    bar = Marks("pooled", "#0072B2", "line-ns", size_pt=10, edge_pt=2.2)
    dots, bars = [], []
    for row, machine in enumerate(machines):
        for group in machine["groups"]:
            share = group.repeats().relative_deviation or 0.0
            words = group_hover(group, {"scatter": share})
            dots.append(replace(dot, xs=(100 * share,), ys=(row,), hover=(words,), opacity=0.5))
        words = hover(machine["env"], machine, (C.scatter, C.configurations, C.degrees))
        bars.append(replace(bar, xs=(100 * machine["scatter"],), ys=(row,), hover=(words,)))
    axis = log_axis("SD between repeats (%)", [mark.xs[0] for mark in dots if mark.xs[0] > 0])
    return row_chart(
        [machine["env"] for machine in machines], [*dots, *bars], axis, legend=(dot, bar)
    )


def real_synthetic_chart(pairs: Sequence[tuple[Group, Group]], colours: Mapping[str, str]) -> Chart:
    """Return pairs (real, synthetic) of one configuration: filled and open, joined by a line."""
    series: list[Marks] = []
    for row, pair in enumerate(pairs[:MAX_ROWS]):
        marks = [
            replace(_marker(group, row, colours), group=name, filled=name == _DATA[0])
            for name, group in zip(_DATA, pair, strict=True)
        ]
        ends = marks[0].xs + marks[1].xs
        series += [Marks("", marks[0].colour, xs=ends, ys=(row, row), line_pt=1.2), *marks]
    return row_chart(
        [real.label for real, _ in pairs[:MAX_ROWS]],
        series,
        _rate_axis([group for pair in pairs for group in pair]),
        legend=[Marks(name, KEY_GREY, "circle", filled=name == _DATA[0]) for name in _DATA],
        title=hidden_rows(len(pairs)),
    )


# Ratios

#: A shape and a colour for each judgement, so that either alone is enough.
_JUDGED: Mapping[Judgement, tuple[str, str]] = {
    "better": ("triangle-up", "#0072B2"),
    "worse": ("triangle-down", "#D55E00"),
    "tie": ("square", "#555555"),
    "undecided": ("circle", "#999999"),
}


class RatioRow(NamedTuple):
    """A ratio in the look of its marker, with the ends of its interval or None without repeats."""

    name: str
    ratio: float
    ends: tuple[float | None, float | None]
    look: Marks
    hover: str


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
    series = [across_rows(1.0, rows, one)] if rows else []
    for y, row in enumerate(rows):
        low, high = row.ends
        mark = replace(row.look, xs=(row.ratio,), ys=(y,), hover=(row.hover,), size_pt=_SIZE_PT)
        if low is None or high is None:
            mark = replace(mark, filled=False)
        else:
            line = Marks(mark.group, mark.colour, line_pt=_LINE_PT)
            series.append(replace(line, xs=(low, high), ys=(y, y)))
        series.append(replace(mark, line_pt=0.0))
    within = (1 / (1 + threshold), 1 + threshold)
    bands = [Band(*within, "#AAAAAA", f"within {percent(threshold)}")] if threshold else []
    held = (end for row in rows for end in (row.ratio, *row.ends) if end is not None)
    axis = _ratio_axis(label, [*within, *held])
    return row_chart([row.name for row in rows], series, axis, bands=bands, **look)


def _ratio_axis(label: str, held: Sequence[float]) -> Axis:
    """An axis that holds these, logarithmic where they differ much."""
    low, high = min(held), max(held)
    if high > 5 * low:
        return log_axis(label, held, margin=(high / low) ** 0.08)
    margin = max(0.08 * (high - low), 0.005)
    return Axis(label=label, limits=(low - margin, high + margin))


def comparison_chart(comparisons: Sequence[Comparison], threshold: float) -> Chart:
    """Return B / A of each comparison; of more than a page holds those farthest from 1.

    What the names of all have in common is the title.
    """
    order = sorted(range(len(comparisons)), key=lambda n: -abs(comparisons[n].estimate.ratio - 1))
    shown = [comparisons[index] for index in sorted(order[:MAX_ROWS])]
    columns = list(zip(*(of.parts for of in shown), strict=True))
    shared = [len(shown) > 1 and len(set(column)) == 1 for column in columns]
    rows, looks = [], {}
    for of in shown:
        shape, colour = _JUDGED[of.judgement]
        looks[of.judgement] = look = Marks(of.word, colour, shape, line_pt=_LINE_PT)
        rest = [part for part, same in zip(of.parts, shared, strict=True) if not same]
        counts = (f"{side.repeats(of.metric.name).count}" for side in (of.a, of.b))
        name = f"{' '.join(rest)} ({':'.join(counts)})"
        words = hover(of.label, of.facts, (C.b_over_a, C.ratio_interval, C.verdict, C.because))
        rows.append(RatioRow(name, of.estimate.ratio, of.estimate.ends, look, words))
    common = " ".join(column[0] for column, same in zip(columns, shared, strict=True) if same)
    metric = shown[0].metric if shown else None
    return ratio_chart(
        rows,
        f"B / A, {metric.unit} ({metric.better} is better)" if metric else "B / A",
        threshold=threshold,
        legend=[looks[judgement] for judgement in _JUDGED if judgement in looks],
        title="; ".join(filter(None, (common, hidden_rows(len(comparisons))))),
        empty="nothing to compare",
    )


def speed_up_chart(found: Sequence[tuple[MachinePair, Row]], colours: Mapping[str, str]) -> Chart:
    """Return how many times as fast as the reference machines are at these configurations.

    Colour is the model, the marker the precision; it is open where there is no interval. Rows of
    one model and precision stand together, within them those of one batch size.
    """
    ordered = sorted(found, key=lambda of: (*of[1]["series"], of[1]["batch_size"] or 0, of[0].b))[
        :MAX_ROWS
    ]
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
    both = hover(f"{name}, over {pair.a}", row, (C.ratio, C.ratio_interval, C.verdict))
    words = "\n".join([both, group_hover(b, row), group_hover(a, of_a)])
    return RatioRow(name, row["ratio"], ends, model_key(b, colours), words)


def tuning_chart(result: TuneResult) -> Chart:
    """Return what each knob gave by fresh runs; without any what the search saw, no gain."""
    title, what = "What each knob gave, from fresh runs", "tuned over put back (95 % interval"
    fresh = (*([result.confirmed] if result.confirmed else []), *result.ablation)
    rows = [
        _gain_row(f"{effect.name}: {effect.best_value} over {effect.other_value}", effect.estimate,
                  effect.confirmed)
        for effect in fresh
    ]  # fmt: skip
    if not rows:
        rows = [_gain_row(duel.name, duel.estimate) for duel in result.comparisons if duel.estimate]
        title = "What the search saw: no gain was confirmed"
        what = "value over the fastest so far (95 % interval"
    label = f"{rate_unit(result.sample)}, {what}; higher is better)"
    return ratio_chart(rows, label, title=title, empty="nothing was adopted and confirmed")


def _gain_row(name: str, estimate: RatioEstimate, gain: bool = False) -> RatioRow:
    low, high = estimate.ends
    ratios = {"ratio": estimate.ratio, "ratio_low": low, "ratio_high": high}
    look = Marks("", "#0072B2" if gain else "#777777", "circle", filled=gain)
    words = hover(name, ratios, (C.ratio, C.ratio_interval))
    return RatioRow(name, estimate.ratio, (low, high), look, words)


# Parts of a step

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
    names, series, legend = [], [], dict[str, Marks]()
    for row, (name, account) in enumerate(accounts[:MAX_ROWS]):
        names.append(f"{name} (not sure)" if account.is_disturbed else name)
        ends_ms = {True: 0.0, False: 0.0}
        for part in sorted(account.parts, key=lambda part: list(_PARTS).index(part.kind)):
            (words, colour), begin_ms = _PARTS[part.kind], ends_ms[part.time_s > 0]
            end_ms = ends_ms[part.time_s > 0] = begin_ms + 1e3 * part.time_s
            legend[words] = look = Marks(words, colour, line_pt=7.0)
            share = percent(part.time_s / account.step_time_s)
            said = f"{name}\n{part.name}: {three_digits(1e3 * part.time_s)} ms, {share}"
            if account.is_disturbed:
                look = replace(look, dashed=True, opacity=_UNSURE_OPACITY)
            series.append(replace(look, xs=(begin_ms, end_ms), ys=(row, row), hover=(said,) * 2))
    ends = [0.0, *(end for line in series for end in line.xs)]
    axis = Axis(label="ms of a step", limits=(1.03 * min(ends), 1.03 * max(ends)))
    entries = [legend[words] for words, _ in _PARTS.values() if words in legend]
    return row_chart(names, series, axis, legend=entries, title=hidden_rows(len(accounts)))
