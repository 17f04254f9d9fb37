"""The report's figures of runs: over batch size, side by side, repeats and iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.axes import legend_below, panel_axes, single_axes
from analysis.figures.charts.batch_curves import (
    device_memory_gb,
    efficiency_curves,
    intensity_curves,
    memory_curves,
    modelled_memory_curves,
    scaling_curves,
    throughput_curves,
)
from analysis.figures.charts.curves import (
    Curve,
    curve_handles,
    draw_curves,
    draw_prediction,
    spans_widely,
)
from analysis.figures.charts.run_charts import (
    draw_distributions,
    draw_models,
    draw_real_synthetic,
    draw_trace,
    draw_variability,
    rows_height_in,
    traced_runs,
)
from analysis.figures.style import OTHER_MODELS
from analysis.findings.report_finding import names_of
from analysis.findings.waiting import synthetic_pairs
from analysis.report.figure_files import FigureFile, FigureFolder
from analysis.report.tables.batch_tables import Predicted, predicted_curves
from analysis.report.tables.group_tables import pooled_scatters
from analysis.runs.groups import group_runs
from analysis.runs.placed import Run

#: Panels of one figure; further models go to the next.
_PANELS = 8
#: A figure over batch sizes: half a page, and what a row of its legend adds to its height.
_WIDTH_IN, _HEIGHT_IN, _LEGEND_ROW_IN = 3.6, 2.7, 0.16
_LEGEND_COLUMNS = 3


class _Drawn(NamedTuple):
    """A figure, the name of its file, and the names of the runs that it shows."""

    name: str
    title: str
    caption: str
    figure: Figure
    runs: Sequence[str]


def draw_runs(runs: Sequence[Run], folder: FigureFolder) -> list[FigureFile]:
    """Draw every figure of runs that has something to show; each says which runs it shows."""
    colours = folder.colours
    drawings = chain(
        _over_batches(runs, folder, throughput_curves(runs), "throughput", "Throughput",
                      "Images/s", "Bars are one standard deviation between repeats to either side"),
        _over_batches(runs, folder, scaling_curves(runs), "gain", "Gain", "Relative images/s",
                      "Throughput over that of the smallest batch"),
        _over_batches(runs, folder, efficiency_curves(runs), "efficiency", "Efficiency",
                      "Share of the compute peak",
                      "Attained FLOP/s over the compute roof of each run's own machine"),
        _over_batches(runs, folder, intensity_curves(runs), "intensity", "Intensity", "FLOP/byte",
                      "Filled markers were counted; an open one stands for the whole interval of "
                      "modelled bytes, eager below and fused above"),
        _memory(runs, folder),
        _in_rows(runs, colours),
        _traces(runs, colours),
        _predictions(runs, folder),
    )  # fmt: skip
    return [
        folder.add(one.figure, one.name, one.title, one.caption, runs=one.runs) for one in drawings
    ]


def _over_batches(
    runs: Sequence[Run],
    folder: FigureFolder,
    curves: Sequence[Curve],
    name: str,
    quantity: str,
    ylabel: str,
    caption: str,
    extra: Callable[[Axes, str], None] = lambda axes, env: None,
) -> Iterator[_Drawn]:
    """One figure per machine that has a curve of two batch sizes or more.

    All have one kind of axis, to be read beside each other.
    """
    machines: dict[str, list[Curve]] = {}
    for curve in curves:
        machines.setdefault(curve.env, []).append(curve)
    logarithmic = spans_widely(curves)
    for env, shown in machines.items():
        if all(len(curve.batches) < 2 for curve in shown):
            continue
        handles = curve_handles(shown, folder.colours)
        rows = -(-len(handles) // _LEGEND_COLUMNS)
        figure, axes = single_axes(_WIDTH_IN, _HEIGHT_IN + _LEGEND_ROW_IN * rows)
        draw_curves(axes, shown, ylabel, colours=folder.colours, logarithmic=logarithmic)
        extra(axes, env)
        legend_below(axes, handles)
        names = [run.name for run in runs if run.env == env and run.throughput_images_per_s]
        title = f"{quantity} over batch size, {env}"
        yield _Drawn(f"{name}-{folder.machines[env]}", title, caption, figure, names)


def _memory(runs: Sequence[Run], folder: FigureFolder) -> Iterator[_Drawn]:
    totals = device_memory_gb(runs)
    curves = memory_curves(runs) or modelled_memory_curves(runs)

    def limit(axes: Axes, env: str) -> None:
        total = totals.get(env)
        low, high = axes.get_ylim()
        if total is not None and total < 3 * high:
            axes.set_ylim(low, max(high, 1.1 * total))
            axes.axhline(total, color="#222222", linewidth=1.0, linestyle="--")

    caption = (
        "Peak memory that was measured (filled), or the cost model's sum (open) where none was; "
        "a dashed line is the device's memory, where it is near"
    )
    yield from _over_batches(runs, folder, curves, "memory", "Memory", "GB", caption, limit)


def _rows(
    name: str,
    title: str,
    caption: str,
    count: int,
    draw: Callable[[Axes], None],
    names: Sequence[str],
) -> Iterator[_Drawn]:
    """A figure of `count` rows."""
    if count:
        figure, axes = single_axes(height_in=rows_height_in(count))
        draw(axes)
        yield _Drawn(name, title, caption, figure, names)


def _in_rows(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Drawn]:
    groups = group_runs(runs)
    places = len({(group.first.env, group.first.arch) for group in groups})
    yield from _rows(
        "models",
        "Models and machines",
        "The fastest batch of each machine and model; its size stands above the marker",
        places if places > 1 else 0,
        lambda axes: draw_models(axes, groups, colours=colours),
        names_of(groups),
    )
    found = pooled_scatters(runs)
    yield from _rows(
        "variability",
        "Variability by machine",
        "Relative standard deviation of images/s between repeats of one configuration",
        len(found),
        lambda axes: draw_variability(axes, found),
        names_of(group for one in found for group in one.groups),
    )
    pairs = synthetic_pairs(groups)
    yield from _rows(
        "real-synthetic",
        "Real against synthetic data",
        "The same configuration with images from disk and with tensors made once",
        len(pairs),
        lambda axes: draw_real_synthetic(axes, pairs, colours=colours),
        names_of(group for pair in pairs for group in pair),
    )
    timed = [run for run in runs if len(run.iteration_times_s) > 1]
    yield from _rows(
        "iteration-times",
        "Iteration times",
        "Outliers are over five robust deviations from the median; none is left out",
        len(timed),
        lambda axes: draw_distributions(axes, timed, colours=colours),
        [run.name for run in timed],
    )


def _traces(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Drawn]:
    shown = traced_runs([run for run in runs if len(run.iteration_times_s) > 1])
    if shown:
        figure, axes = panel_axes(len(shown))
        for one, run in zip(axes, shown, strict=False):
            draw_trace(one, run, colours.get(run.arch, OTHER_MODELS))
        caption = (
            "The windows that drifted most, then those with most outliers; a triangle is an "
            "iteration of over 1.6 times the median, a dashed line where a drift set in"
        )
        names = [run.name for run in shown]
        yield _Drawn("iterations-in-order", "Iterations in order", caption, figure, names)


def _predictions(runs: Sequence[Run], folder: FigureFolder) -> Iterator[_Drawn]:
    """One figure per machine, and further ones for models that it has no room for."""
    machines: dict[str, list[Predicted]] = {}
    for one in predicted_curves(runs):
        machines.setdefault(one.group.first.env, []).append(one)
    caption = "Markers are measured; the line is the model, the band a new measurement's 95 %"
    for env, found in machines.items():
        title = f"Throughput predicted between batch sizes, {env}"
        for page, start in enumerate(range(0, len(found), _PANELS), start=1):
            part = found[start : start + _PANELS]
            figure, axes = panel_axes(len(part))
            for panel, (group, curve) in zip(axes, part, strict=True):
                colour = folder.colours.get(group.arch, OTHER_MODELS)
                label = f"{group.model_label} {group.precision_label}"
                draw_prediction(panel, curve, label, colour)
            name = f"prediction-{folder.machines[env]}" + (f"-{page}" if page > 1 else "")
            names = [name for one in part for name in one.curve.runs]
            yield _Drawn(name, title, caption, figure, names)
