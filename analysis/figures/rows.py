"""Charts with a row per machine, model or configuration: speeds, variability and real data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.figures.chart import (
    KEY_GREY,
    Axis,
    Band,
    Chart,
    Panel,
    Series,
    hover,
    key,
    model_key,
    model_legend,
)
from analysis.runs.frame import Row, group_row
from analysis.runs.groups import Group, fastest
from analysis.runs.run import TOKENS_PER_S
from bench.config import common_sample, rate_column, rate_unit

#: Rows that a page holds.
MAX_ROWS = 45
SIZE_PT = 4.5
_MAX_NAMES = 4
_DATA = ("images from disk", "synthetic")
#: What hovering shows of a configuration, as far as a figure has it.
_SHOWN = (
    "ratio_to_smallest attained_gflops fraction_of_peak intensity_counted intensity peak_memory_mb "
    "modelled_gb scatter rate_mean throughput_tokens_per_s repeats energy cost runs"
)


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
    series: Sequence[Series],
    x: Axis,
    *,
    legend: Sequence[Series] = (),
    title: str = "",
    at: Sequence[float] | None = None,
    bands: Sequence[Band] = (),
    empty: str = "no run has this",
) -> Chart:
    """Return a chart with a row per name, from the top, at heights 0, 1, ... or `at`."""
    heights = tuple(range(len(names)) if at is None else at)
    last = max(heights, default=0)
    panel = Panel(
        x=x,
        y=Axis(label="", limits=(last + 0.7, -0.9), ticks=heights, names=tuple(names)),
        series=tuple(series),
        empty="" if series else empty,
        bands=tuple(bands),
        title=title,
        legend=tuple(legend) if names else (),
        legend_entry_in=1.6,
    )
    return Chart((panel,), 6.5, 1.3 + 0.19 * max(2, last + 1))


def hidden_rows(count: int) -> str:
    """Return where the rows are that a chart has no room for."""
    return f"and {count - MAX_ROWS} more rows in the tables" if count > MAX_ROWS else ""


def models_chart(groups: Sequence[Group], colours: Mapping[str, str]) -> Chart:
    """Return each machine's and model's fastest batch: samples/s, a marker per precision.

    Beside each marker stands its batch size.
    """
    best = fastest(groups)
    all_rows = list(dict.fromkeys((env, model) for env, model, _ in sorted(best)))
    rows = {one: row for row, one in enumerate(all_rows[:MAX_ROWS])}
    series = [
        replace(_marker(group, rows[env, model], colours), names=(f"{group.batch_size}",))
        for (env, model, _), group in best.items()
        if (env, model) in rows
    ]
    return row_chart(
        [f"{env}  {model}" for env, model in rows],
        series,
        _rate_axis(best.values()),
        legend=[one for one in model_legend(series) if one.shape],
        title=hidden_rows(len(all_rows)),
    )


def _marker(group: Group, row: int, colours: Mapping[str, str]) -> Series:
    """A configuration's throughput."""
    look = model_key(group, colours, size_pt=SIZE_PT, hover=(group_hover(group),))
    return replace(look, xs=(group.samples_per_s,), ys=(row,))


def variability_chart(machines: Sequence[Row]) -> Chart:
    """Return the deviation between repeats: a dot per configuration, a bar pooled by machine.

    `machines` are rows of `scatter_rows`.
    """
    dot = key("one configuration", KEY_GREY, "circle", size_pt=3.5)
    bar = key("pooled", "#0072B2", "line-ns", size_pt=10, edge_pt=2.2)
    dots, bars = [], []
    for row, machine in enumerate(machines):
        for group in machine["groups"]:
            share = group.repeats().relative_deviation or 0.0
            words = group_hover(group, {"scatter": share})
            dots.append(replace(dot, xs=(100 * share,), ys=(row,), hover=(words,), opacity=0.5))
        words = hover(machine["env"], machine, "scatter configurations degrees")
        bars.append(replace(bar, xs=(100 * machine["scatter"],), ys=(row,), hover=(words,)))
    axis = _log_axis("SD between repeats (%)", [one.xs[0] for one in dots if one.xs[0] > 0])
    return row_chart(
        [machine["env"] for machine in machines], [*dots, *bars], axis, legend=(dot, bar)
    )


def real_synthetic_chart(pairs: Sequence[tuple[Group, Group]], colours: Mapping[str, str]) -> Chart:
    """Return pairs (real, synthetic) of one configuration: filled and open, joined by a line."""
    series: list[Series] = []
    for row, pair in enumerate(pairs[:MAX_ROWS]):
        marks = [
            replace(_marker(group, row, colours), group=name, filled=name == _DATA[0])
            for name, group in zip(_DATA, pair, strict=True)
        ]
        ends = marks[0].xs + marks[1].xs
        series += [Series(xs=ends, ys=(row, row), colour=marks[0].colour, line_pt=1.2), *marks]
    return row_chart(
        [real.label for real, _ in pairs[:MAX_ROWS]],
        series,
        _rate_axis([group for pair in pairs for group in pair]),
        legend=[key(name, KEY_GREY, "circle", filled=name == _DATA[0]) for name in _DATA],
        title=hidden_rows(len(pairs)),
    )


def _rate_axis(groups: Collection[Group]) -> Axis:
    unit = rate_unit(common_sample(group.sample for group in groups))
    return _log_axis(unit.capitalize(), [group.samples_per_s for group in groups])


def _log_axis(label: str, values: Collection[float]) -> Axis:
    """A logarithmic axis that holds `values`."""
    low, high = min(values, default=1.0), max(values, default=10.0)
    return Axis(label=label, limits=(low / 1.5, high * 1.5), scale="log")
