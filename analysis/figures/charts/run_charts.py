"""Figures of runs: models and machines in rows, repeats, real data, iteration times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from analysis.figures.axes import FONT_PT, legend_below, legend_key, log_ticks, plain, say_empty
from analysis.figures.style import OTHER_MODELS, model_colours, precision_marker
from analysis.findings.differences import Scatter
from analysis.runs.groups import Group, fastest
from analysis.runs.placed import Run
from analysis.statistics import find_outliers

#: Iterations beyond so many medians would flatten everything else: they are drawn at the edge.
_EDGE = 1.6
#: Room for a legend entry.
_ENTRY_IN = 1.6
#: Windows whose iterations are shown in order.
_TRACES = 6
#: Rows that a page holds.
MAX_ROWS = 45


def rows_height_in(rows: int) -> float:
    """Return the height of a figure for so many rows."""
    return 1.3 + 0.19 * max(2, min(rows, MAX_ROWS))


def draw_models(
    axes: Axes, groups: Sequence[Group], *, colours: Mapping[str, str] | None = None
) -> None:
    """Draw each machine's and model's fastest batch: images/s, a marker per precision.

    Beside each marker stands its batch size.
    """
    best = fastest(groups)
    palette = colours or model_colours(arch for _, arch, _ in best)
    places = list(dict.fromkeys((env, arch) for env, arch, _ in sorted(best)))
    shown = places[:MAX_ROWS]
    for (env, arch, precision), group in best.items():
        if (env, arch) not in shown:
            continue
        row, rate = shown.index((env, arch)), group.throughput_images_per_s
        colour = palette.get(arch, OTHER_MODELS)
        axes.plot([rate], [row], marker=precision_marker(precision), color=colour, markersize=4.5)
        axes.annotate(
            f"{group.batch_size}",
            (rate, row),
            xytext=(0, 3.5),
            textcoords="offset points",
            ha="center",
            fontsize=FONT_PT - 2,
            color="#444444",
        )
    _rows(axes, [f"{env}  {arch}" for env, arch in shown], len(places) - len(shown))
    _logarithmic(axes, [g.throughput_images_per_s for g in best.values()], "Images/s")
    used = {precision for _, _, precision in best}
    legend_below(
        axes,
        [legend_key(name, marker=precision_marker(name), markersize=4.5) for name in sorted(used)],
    )


def draw_variability(axes: Axes, scatters: Sequence[Scatter]) -> None:
    """Draw the deviation between repeats: a dot per configuration, a bar pooled by machine."""
    dot: dict[str, Any] = {"marker": "o", "markersize": 3.5, "color": "#555555", "alpha": 0.5}
    bar: dict[str, Any] = {"marker": "|", "markeredgewidth": 2.2, "color": "#0072B2"}
    values: list[float] = []
    for row, scatter in enumerate(scatters):
        shares = [100 * (group.repeats().relative_deviation or 0.0) for group in scatter.groups]
        axes.plot(shares, [row] * len(shares), linestyle="", zorder=3, **dot)
        axes.plot([100 * scatter.deviation], [row], markersize=13, zorder=4, **bar)
        values += [share for share in shares if share > 0]
    _rows(axes, [scatter.label for scatter in scatters], 0)
    _logarithmic(axes, values, "SD between repeats (%)")
    if scatters:
        keys = [legend_key("one configuration", **dot), legend_key("pooled", markersize=10, **bar)]
        legend_below(axes, keys, _ENTRY_IN)


def draw_real_synthetic(
    axes: Axes,
    pairs: Sequence[tuple[Group, Group]],
    *,
    colours: Mapping[str, str] | None = None,
) -> None:
    """Draw pairs (real, synthetic) of the same configuration: filled and open, joined by a line."""
    palette = colours or model_colours(real.first.arch for real, _ in pairs)
    for row, (real, synthetic) in enumerate(pairs[:MAX_ROWS]):
        colour = palette.get(real.first.arch, OTHER_MODELS)
        rates = [group.throughput_images_per_s for group in (real, synthetic)]
        axes.plot(rates, [row, row], color=colour, linewidth=1.2, zorder=3)
        for rate, face in zip(rates, (colour, "white"), strict=True):
            dot: dict[str, Any] = {"marker": "o", "markersize": 4.5, "markerfacecolor": face}
            axes.plot([rate], [row], color=colour, zorder=4, **dot)
    shown = [real.label for real, _ in pairs[:MAX_ROWS]]
    _rows(axes, shown, len(pairs) - len(shown))
    _logarithmic(axes, [g.throughput_images_per_s for pair in pairs for g in pair], "Images/s")
    if pairs:
        disk = legend_key("images from disk", marker="o", markersize=4.5)
        made = legend_key("synthetic", marker="o", markersize=4.5, markerfacecolor="white")
        legend_below(axes, [disk, made], _ENTRY_IN)


def draw_distributions(
    axes: Axes, runs: Sequence[Run], *, colours: Mapping[str, str] | None = None
) -> None:
    """Draw each window's iteration times over its median: 5 to 95 %, quartiles, outliers.

    The axis ends at 1.6 times the median; an outlier beyond is an arrow at that edge.
    """
    timed = [run for run in runs if run.iteration_times_s]
    palette = colours or model_colours(run.arch for run in timed)
    shown = timed[:MAX_ROWS]
    for row, run in enumerate(shown):
        times = np.asarray(run.iteration_times_s) / np.median(run.iteration_times_s)
        colour = palette.get(run.arch, OTHER_MODELS)
        low, first, third, high = np.percentile(times, [5, 25, 75, 95])
        axes.plot([low, high], [row, row], color=colour, linewidth=0.9, zorder=3)
        quartiles: dict[str, Any] = {"linewidth": 4, "solid_capstyle": "butt"}
        axes.plot([first, third], [row, row], color=colour, zorder=4, **quartiles)
        found = find_outliers(run.iteration_times_s)
        for place in found.slow + found.fast:
            marker = ">" if times[place] > _EDGE else "x"
            at = min(times[place], _EDGE)
            axes.plot([at], [row], marker=marker, markersize=3.5, color=colour, zorder=5)
    axes.axvline(1, color="#777777", linewidth=0.7, zorder=2)
    if axes.get_xlim()[1] > _EDGE:
        axes.set_xlim(right=_EDGE + 0.01)
    _rows(axes, [run.label for run in shown], len(timed) - len(shown))
    axes.set_xlabel("Iteration time / median", fontsize=FONT_PT + 0.5)
    if shown:
        keys = [
            legend_key("5 to 95 %", linestyle="-", linewidth=0.9),
            legend_key("quartiles", linestyle="-", linewidth=4),
            legend_key("outlier", marker="x"),
            legend_key("outlier beyond the axis", marker=">"),
        ]
        legend_below(axes, keys, _ENTRY_IN)


def draw_trace(axes: Axes, run: Run, colour: str = "#0072B2") -> None:
    """Draw one run's iterations in order, its median and its outliers; a drift is said above.

    An iteration of over 1.6 times the median is drawn at the upper edge as a triangle.
    """
    _title(axes, run.label)
    axes.set_xlabel("Iteration", fontsize=FONT_PT + 0.5)
    axes.set_ylabel("ms", fontsize=FONT_PT + 0.5)
    plain(axes)
    if not run.iteration_times_s:
        say_empty(axes, "no iterations recorded")
        return
    times_ms = 1e3 * np.asarray(run.iteration_times_s)
    median = float(np.median(times_ms))
    edge = _EDGE * median
    steps = np.arange(1, len(times_ms) + 1)
    size = 2.5 if len(steps) <= 200 else 0
    held = np.minimum(times_ms, edge)
    axes.plot(steps, held, color=colour, linewidth=0.9, marker=".", markersize=size)
    axes.axhline(median, color="#777777", linewidth=0.7, zorder=1)
    outliers = find_outliers(times_ms)
    places = list(outliers.slow + outliers.fast)
    inside = [place for place in places if times_ms[place] <= edge]
    beyond = [place for place in range(len(times_ms)) if times_ms[place] > edge]
    for found, marker in ((inside, "x"), (beyond, "^")):
        cross: dict[str, Any] = {"marker": marker, "markersize": 4, "color": "#D55E00"}
        axes.plot(steps[found], held[found], linestyle="", zorder=4, **cross)
    low = min(float(times_ms.min()), 0.97 * median)
    high = max(float(held.max()), 1.03 * median)
    axes.set_ylim(low - 0.08 * (high - low), high + 0.12 * (high - low))
    drift = run.drift
    if drift is not None:
        word = "slower" if drift.change > 0 else "faster"
        change = f"{100 * abs(drift.change):.1f} % {word}"
        _title(axes, f"{run.label}: {change}, from iteration {drift.changed_at}")
        axes.axvline(drift.changed_at + 0.5, color="#D55E00", linewidth=0.9, linestyle="--")


def traced_runs(runs: Sequence[Run]) -> list[Run]:
    """Return at most six runs: drifting ones first, then those with outliers, then others."""

    def interest(run: Run) -> tuple[float, int]:
        drift = run.drift
        change = abs(drift.change) if drift is not None else 0.0
        return change, find_outliers(run.iteration_times_s).count

    return sorted(runs, key=interest, reverse=True)[:_TRACES]


def _rows(axes: Axes, names: Sequence[str], hidden: int) -> None:
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.3, -0.9)
    plain(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if hidden:
        _title(axes, f"and {hidden} more rows in the tables")
    if not names:
        say_empty(axes, "no run has this")


def _title(axes: Axes, words: str) -> None:
    axes.set_title(words, loc="left", fontsize=FONT_PT, parse_math=False)


def _logarithmic(axes: Axes, values: Sequence[float], label: str) -> None:
    low, high = min(values, default=1.0), max(values, default=10.0)
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.set_xscale("log")
    log_ticks(axes.xaxis, low, high)
    axes.set_xlabel(label, fontsize=FONT_PT + 0.5)
