"""The report's figures of runs: over batch size, side by side, repeats and iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.axes import FONT_PT, panel_axes, single_axes
from analysis.figures.batch_curves import (
    device_memory_gb,
    efficiency_curves,
    intensity_curves,
    memory_curves,
    modelled_memory_curves,
    scaling_curves,
    throughput_curves,
)
from analysis.figures.curves import (
    Curve,
    curve_handles,
    draw_curves,
    draw_prediction,
    spans_widely,
)
from analysis.figures.run_charts import (
    draw_distributions,
    draw_models,
    draw_real_synthetic,
    draw_trace,
    draw_variability,
    rows_height_in,
    traced_runs,
)
from analysis.figures.style import OTHER_MODELS
from analysis.findings.differences import scatters
from analysis.findings.report_finding import names_of
from analysis.findings.waiting import synthetic_pairs
from analysis.report.figure_files import FigureFile, FigureFolder
from analysis.report.tables.batch_tables import predicted_curves
from analysis.runs.groups import group_runs
from analysis.runs.placed import Run

#: Panels of one figure; further machines or models go to the next.
_PANELS = 8


#: Title, caption and figure, and the names of the runs that it shows.
_Drawn = tuple[str, str, Figure, Sequence[str]]


def draw_runs(runs: Sequence[Run], folder: FigureFolder) -> list[FigureFile]:
    """Draw every figure of runs that has something to show; each says which runs it shows."""
    colours = folder.colours
    drawings = chain(
        _panels(runs, throughput_curves(runs), "Throughput over batch size", "Images/s",
                "Bars are one standard deviation between repeats to either side", colours),
        _panels(runs, scaling_curves(runs), "Gain over batch size", "Relative images/s",
                "Throughput over that of the smallest batch", colours),
        _panels(runs, efficiency_curves(runs), "Efficiency over batch size",
                "Share of the compute peak",
                "Attained FLOP/s over the compute roof of each run's own machine", colours),
        _panels(runs, intensity_curves(runs), "Intensity over batch size", "FLOP/byte",
                "Filled markers were counted; an open one stands for the whole interval of "
                "modelled bytes, eager below and fused above", colours),
        _memory(runs, colours),
        _in_rows(runs, colours),
        _traces(runs, colours),
        _predictions(runs, colours),
    )  # fmt: skip
    return [
        folder.add(figure, f"runs-{place}", title, caption, runs=names)
        for place, (title, caption, figure, names) in enumerate(drawings, start=1)
    ]


def _panels(
    runs: Sequence[Run],
    curves: Sequence[Curve],
    title: str,
    ylabel: str,
    caption: str,
    colours: Mapping[str, str],
    extra: Callable[[Axes, str], None] = lambda axes, env: None,
) -> Iterator[_Drawn]:
    """One panel per machine that has a curve, with one legend for all.

    Where no curve has two batch sizes there is nothing to see over them.
    """
    machines: dict[str, list[Curve]] = {}
    if all(len(curve.batches) < 2 for curve in curves):
        return
    for curve in curves:
        machines.setdefault(curve.env, []).append(curve)
    envs = list(machines)
    for start in range(0, len(envs), _PANELS):
        part = envs[start : start + _PANELS]
        shown = [curve for env in part for curve in machines[env]]
        figure, axes = panel_axes(len(part))
        logarithmic = spans_widely(shown)  # one kind of axis, to be read beside each other
        for one, env in zip(axes, part, strict=True):
            draw_curves(one, machines[env], ylabel, colours=colours, logarithmic=logarithmic)
            one.set_title(env, loc="left", fontsize=FONT_PT, parse_math=False)
            extra(one, env)
        figure.legend(handles=curve_handles(shown, colours), loc="outside lower center", ncols=6,
                      fontsize=FONT_PT, frameon=False)  # fmt: skip
        names = [run.name for run in runs if run.env in part and run.throughput_images_per_s]
        yield title, caption, figure, names


def _memory(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Drawn]:
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
    yield from _panels(runs, curves, "Memory over batch size", "GB", caption, colours, limit)


def _rows(
    title: str, caption: str, count: int, draw: Callable[[Axes], None], names: Sequence[str]
) -> Iterator[_Drawn]:
    """A figure of `count` rows."""
    if count:
        figure, axes = single_axes(height_in=rows_height_in(count))
        draw(axes)
        yield title, caption, figure, names


def _in_rows(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Drawn]:
    groups = group_runs(runs)
    places = len({(group.first.env, group.first.arch) for group in groups})
    yield from _rows(
        "Models and machines",
        "The fastest batch of each machine and model; its size stands above the marker",
        places if places > 1 else 0,
        lambda axes: draw_models(axes, groups, colours=colours),
        names_of(groups),
    )
    found = scatters(runs)
    yield from _rows(
        "Variability by machine",
        "Relative standard deviation of images/s between repeats of one configuration",
        len(found),
        lambda axes: draw_variability(axes, found),
        names_of(group for one in found for group in one.groups),
    )
    pairs = synthetic_pairs(groups)
    yield from _rows(
        "Real against synthetic data",
        "The same configuration with images from disk and with tensors made once",
        len(pairs),
        lambda axes: draw_real_synthetic(axes, pairs, colours=colours),
        names_of(group for pair in pairs for group in pair),
    )
    timed = [run for run in runs if len(run.iteration_times_s) > 1]
    yield from _rows(
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
        yield "Iterations in order", caption, figure, [run.name for run in shown]


def _predictions(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Drawn]:
    found = predicted_curves(runs)
    for start in range(0, len(found), _PANELS):
        part = found[start : start + _PANELS]
        figure, axes = panel_axes(len(part))
        for one, (group, curve) in zip(axes, part, strict=True):
            first = group.first
            label = f"{first.env} {first.arch} {first.precision}"
            draw_prediction(one, curve, label, colours.get(first.arch, OTHER_MODELS))
        caption = "Markers are measured; the line is the model, the band a new measurement's 95 %"
        names = [name for one in part for name in one.curve.runs]
        yield "Throughput predicted between batch sizes", caption, figure, names
