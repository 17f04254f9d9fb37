"""Figures of rows: models and machines side by side, repeats, real data, windows of iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.figures.curves import plain
from analysis.figures.log_axes import FONT_PT, legend_below, say_empty
from analysis.figures.style import (
    OTHER_MODELS,
    OTHER_PRECISION,
    PRECISION_MARKERS,
    model_colours,
)
from analysis.findings.variability import Scatter
from analysis.runs.groups import Group
from analysis.runs.placed import Run
from analysis.statistics import find_outliers

#: Outliers beyond so many medians would flatten everything else.
_EDGE = 1.6
#: Rows that a page holds.
MOST_ROWS = 45


def rows_height_in(rows: int) -> float:
    """Return the height of a figure for so many rows."""
    return 1.3 + 0.19 * max(2, min(rows, MOST_ROWS))


def draw_models(
    axes: Axes, groups: Sequence[Group], *, colours: Mapping[str, str] | None = None
) -> None:
    """Draw each machine's and model's fastest batch: images/s, a marker per precision.

    Beside each marker stands its batch size.
    """
    fastest: dict[tuple[str, str, str], Group] = {}
    for group in groups:
        key = (group.first.env, group.first.arch, group.first.precision)
        known = fastest.get(key)
        if known is None or group.throughput_images_per_s > known.throughput_images_per_s:
            fastest[key] = group
    palette = colours or model_colours(arch for _, arch, _ in fastest)
    places = list(dict.fromkeys((env, arch) for env, arch, _ in sorted(fastest)))
    shown = places[:MOST_ROWS]
    for (env, arch, precision), group in fastest.items():
        if (env, arch) not in shown:
            continue
        row, rate = shown.index((env, arch)), group.throughput_images_per_s
        colour = palette.get(arch, OTHER_MODELS)
        axes.plot([rate], [row], marker=_marker(precision), color=colour, markersize=4.5)
        axes.annotate(f"{group.batch_size}", (rate, row), xytext=(0, 3.5), ha="center",
                      textcoords="offset points", fontsize=FONT_PT - 2,
                      color="#444444")  # fmt: skip
    _rows(axes, [f"{env}  {arch}" for env, arch in shown], len(places) - len(shown))
    _logarithmic(axes, [g.throughput_images_per_s for g in fastest.values()], "Images/s")
    used = {precision for _, _, precision in fastest}
    legend_below(axes, [_shape(precision) for precision in sorted(used)])


def draw_variability(axes: Axes, scatters: Sequence[Scatter]) -> None:
    """Draw the deviation between repeats: a dot per configuration, a bar pooled by machine."""
    for row, scatter in enumerate(scatters):
        shares = [100 * (group.repeats().relative_deviation or 0.0) for group in scatter.groups]
        axes.plot(shares, [row] * len(shares), linestyle="", marker="o", markersize=3.5,
                  color="#555555", alpha=0.5, zorder=3)  # fmt: skip
        axes.plot([100 * scatter.deviation], [row], marker="|", markersize=13, markeredgewidth=2.2,
                  color="#0072B2", zorder=4)  # fmt: skip
    _rows(axes, [scatter.label for scatter in scatters], 0)
    values = [
        100 * (group.repeats().relative_deviation or 0.0)
        for scatter in scatters
        for group in scatter.groups
    ]
    _logarithmic(axes, [value for value in values if value > 0], "SD between repeats (%)")
    if scatters:
        legend_below(axes, [
            Line2D([], [], linestyle="", marker="o", markersize=3.5, color="#555555", alpha=0.5,
                   label="one configuration"),
            Line2D([], [], linestyle="", marker="|", markersize=10, markeredgewidth=2.2,
                   color="#0072B2", label="pooled"),
        ], entry_in=1.6)  # fmt: skip


def draw_real_synthetic(
    axes: Axes,
    pairs: Sequence[tuple[Group, Group]],
    *,
    colours: Mapping[str, str] | None = None,
) -> None:
    """Draw pairs (real, synthetic) of the same configuration: filled and open, joined by a line."""
    palette = colours or model_colours(real.first.arch for real, _ in pairs)
    for row, (real, synthetic) in enumerate(pairs[:MOST_ROWS]):
        colour = palette.get(real.first.arch, OTHER_MODELS)
        rates = [group.throughput_images_per_s for group in (real, synthetic)]
        axes.plot(rates, [row, row], color=colour, linewidth=1.2, zorder=3)
        for rate, face in zip(rates, (colour, "white"), strict=True):
            axes.plot([rate], [row], marker="o", markersize=4.5, color=colour,
                      markerfacecolor=face, zorder=4)  # fmt: skip
    shown = [real.label for real, _ in pairs[:MOST_ROWS]]
    _rows(axes, shown, len(pairs) - len(shown))
    _logarithmic(axes, [g.throughput_images_per_s for pair in pairs for g in pair], "Images/s")
    if pairs:
        legend_below(axes, [
            Line2D([], [], linestyle="", marker="o", color="#555555", markersize=4.5,
                   markerfacecolor=face, label=label)
            for face, label in (("#555555", "images from disk"), ("white", "synthetic"))
        ], entry_in=1.6)  # fmt: skip


def draw_distributions(
    axes: Axes, runs: Sequence[Run], *, colours: Mapping[str, str] | None = None
) -> None:
    """Draw each window's iteration times over its median: 5 to 95 %, quartiles, outliers.

    The axis ends at 1.6 times the median; an outlier beyond is an arrow at that edge.
    """
    timed = [run for run in runs if run.iteration_times_s]
    palette = colours or model_colours(run.arch for run in timed)
    shown = timed[:MOST_ROWS]
    for row, run in enumerate(shown):
        times = np.asarray(run.iteration_times_s) / np.median(run.iteration_times_s)
        colour = palette.get(run.arch, OTHER_MODELS)
        low, first, third, high = np.percentile(times, [5, 25, 75, 95])
        axes.plot([low, high], [row, row], color=colour, linewidth=0.9, zorder=3)
        axes.plot([first, third], [row, row], color=colour, linewidth=4, zorder=4,
                  solid_capstyle="butt")  # fmt: skip
        found = find_outliers(run.iteration_times_s)
        for place in found.slow + found.fast:
            beyond = times[place] > _EDGE
            axes.plot([min(times[place], _EDGE)], [row], marker=">" if beyond else "x",
                      markersize=3.5, color=colour, zorder=5)  # fmt: skip
    axes.axvline(1, color="#777777", linewidth=0.7, zorder=2)
    if axes.get_xlim()[1] > _EDGE:
        axes.set_xlim(right=_EDGE + 0.01)
    _rows(axes, [run.label for run in shown], len(timed) - len(shown))
    axes.set_xlabel("Iteration time / median", fontsize=FONT_PT + 0.5)
    if shown:
        legend_below(axes, [
            Line2D([], [], color="#555555", linewidth=0.9, label="5 to 95 %"),
            Line2D([], [], color="#555555", linewidth=4, label="quartiles"),
            *(Line2D([], [], color="#555555", linestyle="", marker=marker, markersize=4, label=name)
              for marker, name in (("x", "outlier"), (">", "outlier beyond the axis"))),
        ], entry_in=1.6)  # fmt: skip


def _rows(axes: Axes, names: Sequence[str], hidden: int) -> None:
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.3, -0.9)
    plain(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if hidden:
        axes.set_title(f"and {hidden} more rows in the tables", loc="left", fontsize=FONT_PT)
    if not names:
        say_empty(axes, "no run has this")


def _logarithmic(axes: Axes, values: Sequence[float], label: str) -> None:
    low, high = min(values, default=1.0), max(values, default=10.0)
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.set_xscale("log")
    steps = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(10, subs=steps, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label, fontsize=FONT_PT + 0.5)


def _marker(precision: str) -> str:
    return PRECISION_MARKERS.get(precision, OTHER_PRECISION)


def _shape(precision: str) -> Line2D:
    return Line2D([], [], color="#555555", linestyle="", marker=_marker(precision), markersize=4.5,
                  label=precision)  # fmt: skip
