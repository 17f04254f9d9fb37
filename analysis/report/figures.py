"""Which figures a report has, and their files.

A figure is named by what it shows, `throughput-lab.svg` say, and keeps its name when others appear.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from analysis.comparison.machines import AcrossMachines
from analysis.figures import (
    Chart,
    batches,
    draw_chart,
    figure_html,
    interactive_chart,
    kernel_chart,
    model_colours,
    op_chart,
    rows,
    run_chart,
    save_figure,
)
from analysis.figures.batches import Curve, Quantity, batch_chart, curves_of, prediction_panel
from analysis.figures.chart import OTHER_MODELS, panel_chart
from analysis.figures.ratios import speed_up_charts
from analysis.figures.times import distributions_chart, trace_panel, traced_runs
from analysis.findings.knobs import synthetic_pairs
from analysis.prediction import PredictedCurve
from analysis.report.folder import file_names
from analysis.report.run_tables import pooled_scatters, predicted_curves
from analysis.runs.groups import Group, group_runs, names_of, sample_of
from analysis.runs.place import PlacedProfile
from analysis.runs.run import Run
from analysis.traces.placed import PlacedTrace
from analysis.words import three_digits
from bench.config import Sample, common_sample, rate_unit

_ROOFLINE_CAPTION = (
    "Up is faster, right is more arithmetic per byte. Colour is the model, the marker the "
    "arithmetic, its size the batch size; a line between two open markers is a run whose traffic "
    "is known as an interval only, dashed if the run was imported and its work is modelled. Grey "
    "lines are the roofs: solid if measured, dashed if from a datasheet"
)
_OPS_CAPTION = (
    "Attained by the cost model's FLOP over the profiler's time of each op. A marker stands at the "
    "intensity of an op's eager bytes, its line ends at that of its fused bytes"
)
_TRACE_CAPTION = (
    "Attained by the FLOP of each kind of op over the own time of its kernels. A marker stands at "
    "the intensity of an op's eager bytes, its line ends at that of its fused bytes"
)
_KERNELS_CAPTION = (
    "Executed FLOP over each kernel's own duration and bytes. Durations are the profiler's, one "
    "kernel at a time with emptied caches, and not the training's; names are cut, the numbers are "
    "those of the table"
)
#: Over batch size: title, axis, caption, and the quantities of which a curve shows its first.
_OVER_BATCHES: dict[str, tuple[str, str, str, Sequence[Quantity]]] = {
    "gain": (
        "Gain",
        "Relative {unit}",
        "Throughput over that of the smallest batch",
        [batches.gain],
    ),
    "efficiency": (
        "Efficiency",
        "Share of the compute peak",
        "Attained FLOP/s over the compute roof of each run's own machine",
        [batches.efficiency],
    ),
    "intensity": (
        "Intensity",
        "FLOP/byte",
        "Filled markers were counted; an open one stands for the whole interval of modelled "
        "bytes, eager below and fused above",
        [batches.intensity],
    ),
    "memory": (
        "Memory",
        "GB",
        "Peak memory that was measured (filled), or the cost model's sum (open) where none was; a "
        "dashed line is the device's memory, where it is near",
        [batches.peak_memory_gb, batches.modelled_memory_gb],
    ),
}
#: Panels of one figure; further models go to the next.
_PANELS = 8
_Shown = TypeVar("_Shown")


class ReportFigure(NamedTuple):
    """A chart, the name of its file, its words, and the names of the runs that it shows."""

    name: str
    title: str
    caption: str
    chart: Chart
    runs: Sequence[str] = ()


class FigureFile(NamedTuple):
    """A figure with its number in the report and the name of its files, without an ending.

    `interactive` is trusted markup of the same figure; the first one of a report has Plotly's
    script in it. `data_uri` is the picture, for paper and for browsers that run no scripts.
    """

    number: int
    name: str
    figure: ReportFigure
    data_uri: str
    interactive: str


def save_figures(
    parts: Mapping[str, Iterable[ReportFigure]], folder: Path
) -> dict[str, list[FigureFile]]:
    """Save the figures of each part as PNG and SVG, numbered from 1.

    A name that another one has gets a number.
    """
    names: list[str] = []

    def saved(one: ReportFigure) -> FigureFile:
        names.append(one.name)
        name, number = file_names(names)[-1], len(names)
        png, svg = save_figure(draw_chart(one.chart), folder, name)
        shown = min(png, svg, key=lambda path: path.stat().st_size)
        kind = "png" if shown is png else "svg+xml"
        encoded = base64.b64encode(shown.read_bytes()).decode("ascii")
        drawn = figure_html(interactive_chart(one.chart), name, with_script=number == 1)
        return FigureFile(number, name, one, f"data:image/{kind};base64,{encoded}", drawn)

    return {part: [saved(one) for one in figures] for part, figures in parts.items()}


def report_figures(
    runs: Sequence[Run],
    inside: Mapping[str, PlacedProfile | PlacedTrace],
    across: AcrossMachines,
) -> dict[str, Iterable[ReportFigure]]:
    """Return the figures of each part of the report, in its order.

    `inside` are profiles and traces by the names of their parts.
    """
    archs = [run.arch for run in runs]
    colours = model_colours([*archs, *(_arch(one) for one in inside.values())])
    roofline = partial(_roofline, colours)
    placed = [run for run in runs if run.point]
    machines: dict[str, list[Run]] = {}
    for run in placed:
        machines.setdefault(run.env, []).append(run)
    title = "Roofline, all machines" if len(machines) > 1 else "Roofline"
    of_all = [roofline("roofline", title, placed, _ROOFLINE_CAPTION)] if placed else []
    of_each = (roofline(f"roofline-{env}", f"Roofline of {env}", machines[env]) for env in machines)
    return {
        "roofline": of_all,
        "across": _across(across, colours),
        "runs": run_figures(runs, colours),
        "machines": of_each if len(machines) > 1 else (),
        **{
            name: _inside(one, name, colours.get(_arch(one), OTHER_MODELS))
            for name, one in inside.items()
        },
    }


def _arch(one: PlacedProfile | PlacedTrace) -> str:
    return one.record.config.arch if isinstance(one, PlacedProfile) else one.record.arch or ""


def _roofline(
    colours: Mapping[str, str], name: str, title: str, runs: Sequence[Run], caption: str = ""
) -> ReportFigure:
    chart = run_chart(runs, colours=colours)
    return ReportFigure(name, title, caption, chart, [run.name for run in runs])


def _inside(one: PlacedProfile | PlacedTrace, name: str, colour: str) -> Iterator[ReportFigure]:
    """The ops of a profile or a trace, and a profile's kernels, as far as it has them."""
    if isinstance(one, PlacedTrace):
        if one.kinds.placed:
            title = f"Ops of trace {one.number}, {one.label}"
            chart = op_chart(one.kinds, one.used, colour=colour)
            yield ReportFigure(f"ops-{name}", title, _TRACE_CAPTION, chart)
        return
    if one.ops is not None:
        chart = op_chart(one.ops, one.used, colour=colour)
        yield ReportFigure(f"ops-{name}", f"Ops of {one.label}", _OPS_CAPTION, chart)
    if one.kernels is not None and one.record.resolved is not None:
        chart = kernel_chart(one.kernels, one.used, math_mode=one.record.resolved.math_mode)
        yield ReportFigure(f"kernels-{name}", f"Kernels of {one.label}", _KERNELS_CAPTION, chart)


def _across(across: AcrossMachines, colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    """How many times as fast as the reference each machine is; none where none shares."""
    unit = rate_unit(common_sample(pair.sample for pair in across.against))
    caption = (
        f"{unit.capitalize()} over those of {across.reference} at the same configuration, with the "
        "95 % interval; open where neither machine has repeats. Batches that spilled out of memory "
        "and two precisions of one name are in the table only"
    )
    title = f"Times as fast as {across.reference}"
    for chart, runs in speed_up_charts(across.against, colours):
        yield ReportFigure("times-as-fast", title, caption, chart, runs)


def run_figures(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    """Yield every figure of runs that has something to show; each says which runs it shows."""
    over = partial(_over_batches, colours=colours)
    measured = [run for run in runs if run.samples_per_s]
    caption = "Bars are one standard deviation between repeats to either side"
    for part, name, of_kind in _by_sample(measured, lambda run: run.sample, "throughput"):
        label = rate_unit(part[0].sample).capitalize()
        yield from over(part, name, f"Throughput{of_kind}", label, caption, [batches.throughput])
    unit = rate_unit(sample_of(runs))
    for name, (title, label, caption, quantities) in _OVER_BATCHES.items():
        yield from over(runs, name, title, label.format(unit=unit), caption, quantities)
    yield from _models(runs, colours)
    yield from _variability(runs)
    yield from _real_synthetic(runs, colours)
    yield from _iterations(runs, colours)
    yield from _predictions(runs, colours)


def _over_batches(
    runs: Sequence[Run],
    name: str,
    quantity: str,
    label: str,
    caption: str,
    quantities: Sequence[Quantity],
    *,
    colours: Mapping[str, str],
) -> Iterator[ReportFigure]:
    """One figure per machine that has a curve of two batch sizes or more.

    All have one kind of axis, to be read beside each other.
    """
    machines: dict[str, list[Curve]] = {}
    for curve in curves_of(runs, *quantities):
        machines.setdefault(curve.of.env, []).append(curve)
    logarithmic = batches.spans_widely(curve for shown in machines.values() for curve in shown)
    limits = batches.device_memory_gb(runs) if name == "memory" else {}
    for env, shown in machines.items():
        if all(len(curve.groups) < 2 for curve in shown):
            continue
        gb = limits.get(env)
        limit = None if gb is None else (gb, f"the device's memory: {three_digits(gb)} GB")
        chart = batch_chart(shown, label, colours=colours, logarithmic=logarithmic, limit=limit)
        names = [run.name for run in runs if run.env == env and run.samples_per_s]
        title = f"{quantity} over batch size, {env}"
        yield ReportFigure(f"{name}-{env}", title, caption, chart, names)


def _by_sample(
    shown: Iterable[_Shown], sample_of: Callable[[_Shown], Sample], name: str
) -> Iterator[tuple[list[_Shown], str, str]]:
    """What trains on each kind of sample, a file name, and words for a title.

    Images/s and sequences/s share no axis.
    """
    kinds: dict[Sample, list[_Shown]] = {}
    for one in shown:
        kinds.setdefault(sample_of(one), []).append(one)
    for sample, part in kinds.items():
        several = len(kinds) > 1
        yield part, f"{name}-{sample}s" if several else name, f", {sample}s" if several else ""


def _models(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    groups = group_runs(runs)
    if len({(group.env, group.arch) for group in groups}) < 2:
        return
    caption = "The fastest batch of each machine and model; its size stands beside the marker"
    for part, name, of_kind in _by_sample(groups, lambda group: group.sample, "models"):
        chart = rows.models_chart(part, colours)
        yield ReportFigure(name, f"Models and machines{of_kind}", caption, chart, names_of(part))


def _variability(runs: Sequence[Run]) -> Iterator[ReportFigure]:
    if found := pooled_scatters(runs):
        yield ReportFigure(
            "variability",
            "Variability by machine",
            f"Relative standard deviation of {rate_unit(sample_of(runs))} between repeats of one "
            "configuration",
            rows.variability_chart(found),
            tuple(name for row in found for name in row["runs"].names),
        )


def _real_synthetic(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    pairs = synthetic_pairs(group_runs(runs))
    for part, name, of_kind in _by_sample(pairs, lambda pair: pair[0].sample, "real-synthetic"):
        yield ReportFigure(
            name,
            f"Real against synthetic data{of_kind}",
            "The same configuration with data from disk and with tensors made once",
            rows.real_synthetic_chart(part, colours),
            names_of(group for pair in part for group in pair),
        )


def _iterations(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    timed = [run for run in runs if len(run.iteration_times_s) > 1]
    if not timed:
        return
    yield ReportFigure(
        "iteration-times",
        "Iteration times",
        "A thick line has the quartiles, a thin one 5 to 95 %. Outliers are over five robust "
        "deviations from the median; none is left out",
        distributions_chart(timed, colours),
        [run.name for run in timed],
    )
    shown = traced_runs(timed)
    panels = [trace_panel(run, colours.get(run.arch, OTHER_MODELS)) for run in shown]
    yield ReportFigure(
        "iterations-in-order",
        "Iterations in order",
        "The windows that drifted most, then those with most outliers; a triangle is an "
        "iteration of over 1.6 times the median, a dashed line where a drift set in",
        panel_chart(panels),
        [run.name for run in shown],
    )


def _predictions(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    """One figure per machine, and further ones for models that it has no room for."""
    caption = "Markers are measured; the line is the model, the band a new measurement's 95 %"
    machines: dict[str, list[tuple[Group, PredictedCurve]]] = {}
    for group, curve in predicted_curves(runs):
        machines.setdefault(group.env, []).append((group, curve))
    for env, found in sorted(machines.items()):
        title = f"Throughput predicted between batch sizes, {env}"
        for start in range(0, len(found), _PANELS):
            part = found[start : start + _PANELS]
            panels = [
                prediction_panel(
                    curve,
                    f"{group.model_label} {group.precision_label}",
                    colours.get(group.arch, OTHER_MODELS),
                )
                for group, curve in part
            ]
            names = [name for _, curve in part for name in curve.runs]
            yield ReportFigure(f"prediction-{env}", title, caption, panel_chart(panels), names)
