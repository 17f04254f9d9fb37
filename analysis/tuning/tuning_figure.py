"""A tuning in one picture: what each knob gave, and every trial on the way there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.figures.axes import FONT_PT, legend_below, legend_key, plain, say_empty
from analysis.tuning.account import effects
from bench.config import rate_unit
from campaigns.tune.result import Effect, PairedComparison, Trial, TuneResult
from campaigns.tune.stopping_rule import Interval

#: A shape and a colour for each kind of trial, so that either alone is enough.
_STYLES: Mapping[str, tuple[str, str]] = {
    "the fastest so far": ("o", "#777777"),
    "another value": ("^", "#0072B2"),
    "tuned": ("s", "#009E73"),
    "start": ("D", "#000000"),
    "tuned, one knob put back": ("v", "#CC79A7"),
    "no result": ("x", "#D55E00"),
}
_GAIN, _NO_GAIN = "#0072B2", "#777777"
_ROW_IN = 0.22
#: A trial's share of the width; comparisons of one trial are labelled side by side.
_TRIAL_IN = 0.13
_NARROWEST_IN, _WIDEST_IN = 7.0, 16.0


def tuning_figure(result: TuneResult) -> Figure:
    """Return the figure of a tuning: what each knob gave above, the trials below."""
    found, unit = effects(result), rate_unit(result.sample)
    compared = [comparison for comparison in result.comparisons if comparison.interval is not None]
    rows = max(1, len(found or compared))
    width_in = min(_WIDEST_IN, max(_NARROWEST_IN, 1.2 + _TRIAL_IN * len(result.trials)))
    heights = (1.0 + _ROW_IN * rows, 4.2)
    figure = Figure(figsize=(width_in, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=heights)
    if found or not compared:
        draw_ablation(above, found, unit)
    else:
        draw_duels(above, compared, unit)
    draw_trials(below, result)
    return figure


def draw_ablation(axes: Axes, rows: Sequence[Effect], unit: str) -> None:
    """Draw each effect's ratio with its interval; a filled marker is a gain beyond doubt."""
    _draw_ratios(
        axes,
        [
            (f"{one.name}: {one.best_value} over {one.other_value}", one.interval, one.confirmed)
            for one in rows
        ],
    )
    axes.set_xlabel(f"{unit}, tuned over put back (95 % interval; higher is better)")
    axes.set_title("What each knob gave, from fresh runs", loc="left", fontsize=FONT_PT + 1)
    if not rows:
        say_empty(axes, "nothing was adopted and confirmed")


def draw_duels(axes: Axes, comparisons: Sequence[PairedComparison], unit: str) -> None:
    """Draw each compared value's ratio with the bounds that decided; none is quoted as a gain."""
    _draw_ratios(axes, [(one.name, one.interval, False) for one in comparisons if one.interval])
    axes.set_xlabel(f"{unit}, value over the fastest so far (its bounds; higher is better)")
    axes.set_title("What the search saw: no gain was confirmed", loc="left", fontsize=FONT_PT + 1)


def _draw_ratios(axes: Axes, rows: Sequence[tuple[str, Interval, bool]]) -> None:
    """A row each: its name, ratio and bounds, and whether it is a gain beyond doubt."""
    ends = [1.0]
    for row, (_, found, gain) in enumerate(rows):
        colour = _GAIN if gain else _NO_GAIN
        if found.low is not None and found.high is not None:
            axes.plot([found.low, found.high], [row, row], color=colour, linewidth=1.6, zorder=3)
        axes.plot([found.ratio], [row], marker="o", markersize=5, linestyle="", color=colour,
                  markerfacecolor=colour if gain else "white", zorder=4)  # fmt: skip
        ends += [end for end in (found.low, found.ratio, found.high) if end is not None]
    axes.axvline(1, color="#777777", linewidth=0.8, zorder=2)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], parse_math=False)
    axes.set_ylim(max(1, len(rows)) - 0.4, -0.6)
    margin = max(0.01, 0.05 * (max(ends) - min(ends)))
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    axes.tick_params(axis="y", length=0)
    _plain(axes, grid="x")


def draw_trials(axes: Axes, result: TuneResult) -> None:
    """Draw samples/s of every trial in order; each comparison is a band with its value's name."""
    kinds = {trial.number: _kind(trial, result) for trial in result.trials}
    rates = [trial.samples_per_s for trial in result.trials if trial.samples_per_s is not None]
    # Markers are compared by their distance, not by their height: the axis need not hold 0.
    floor = 0.9 * min(rates, default=0.0)
    for trial in result.trials:
        marker, colour = _STYLES[kinds[trial.number]]
        height = floor if trial.samples_per_s is None else trial.samples_per_s
        axes.plot([trial.number], [height], marker=marker, color=colour, markersize=4.5,
                  linestyle="", clip_on=False, zorder=3)  # fmt: skip
    axes.set_ylim(floor, 1.02 * max(rates, default=1.0))
    axes.set_xlim(0.4, len(result.trials) + 0.6)
    _name_bands(axes, result)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("trial, in the order of measurement")
    axes.set_ylabel(rate_unit(result.sample))
    _plain(axes, grid="y")
    handles = [
        legend_key(kind, marker=marker, color=colour, markersize=4.5)
        for kind, (marker, colour) in _STYLES.items()
        if kind in kinds.values()
    ]
    legend_below(axes, handles, entry_in=1.6)


def _name_bands(axes: Axes, result: TuneResult) -> None:
    bands = [
        (
            comparison.trials[0],
            comparison.trials[-1],
            f"{comparison.name}{' *' * (comparison.decision == 'adopted')}",
        )
        for comparison in result.comparisons
        if comparison.trials
    ]
    fresh = [trial.number for trial in result.trials if trial.stage == "confirmation"]
    if fresh:
        bands.append((fresh[0], fresh[-1], "confirmation"))
    for number, (first, last, name) in enumerate(bands):
        if number % 2 == 0:
            axes.axvspan(first - 0.5, last + 0.5, color="#F2F2F2", zorder=0)
        axes.text((first + last) / 2, 1.01, name, transform=axes.get_xaxis_transform(),
                  rotation=90, ha="center", va="bottom", fontsize=FONT_PT - 1,
                  parse_math=False)  # fmt: skip
    if any(comparison.decision == "adopted" for comparison in result.comparisons):
        axes.text(1.0, 0.02, "* adopted", transform=axes.transAxes, ha="right", va="bottom",
                  fontsize=FONT_PT)  # fmt: skip


def _kind(trial: Trial, result: TuneResult) -> str:
    config_id = trial.config_id
    if trial.samples_per_s is None:
        return "no result"
    if trial.stage == "search":
        comparison = next((one for one in result.comparisons if trial.number in one.trials), None)
        kept = comparison is not None and comparison.incumbent.config_id == config_id
        return "the fastest so far" if kept else "another value"
    if config_id == result.start.config_id:
        return "start"
    return "tuned" if config_id == result.best.config_id else "tuned, one knob put back"


def _plain(axes: Axes, grid: Literal["x", "y"]) -> None:
    plain(axes, grid)
    axes.xaxis.label.set_fontsize(FONT_PT + 0.5)
    axes.yaxis.label.set_fontsize(FONT_PT + 0.5)
