"""Which figures a report has, and their files.

A figure is named by what it shows, `throughput-lab.svg` say, and keeps its name when others appear.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from analysis.comparison.machines import AcrossMachines
from analysis.figures import (
    draw_chart,
    kernel_chart,
    model_colours,
    op_chart,
    run_chart,
    save_figure,
)
from analysis.figures.chart import OTHER_MODELS, Chart, panel_chart
from analysis.figures.configurations import (
    Quantity,
    batch_chart,
    curves_of,
    efficiency,
    gain,
    intensity,
    modelled_memory_gb,
    models_chart,
    peak_memory_gb,
    real_synthetic_chart,
    spans_widely,
    throughput,
    variability_chart,
)
from analysis.figures.interactive import figure_html, interactive_chart
from analysis.figures.ratios import speed_up_chart
from analysis.figures.times import account_chart, distributions_chart, trace_panel, traced_runs
from analysis.findings.bottlenecks import synthetic_pairs
from analysis.findings.differences import scatter_rows
from analysis.report.folder import file_names
from analysis.runs.groups import group_runs, names_of, newest_accounts, sample_of
from analysis.runs.place import PlacedProfile
from analysis.runs.run import Run
from analysis.table import grouped
from analysis.traces.placed import PlacedTrace
from bench.config import Sample, common_sample, rate_unit

_ROOFLINE_CAPTION = (
    "Up is faster, right is more arithmetic per byte. Colour is the model, the marker the "
    "arithmetic, its size the batch size; a line between two open markers is a run whose traffic "
    "is known as an interval only, dashed if the run was imported and its work is modelled. Roofs "
    "are solid if measured, dashed if from a datasheet"
)
_OPS_CAPTION = (
    "Attained by the cost model's FLOP over the time of each kind of op. A marker stands at the "
    "intensity of an op's eager bytes, its line ends at that of its fused bytes"
)
_KERNELS_CAPTION = (
    "Executed FLOP over each kernel's own duration and bytes. Durations are the profiler's, one "
    "kernel at a time with emptied caches, and not the training's; names are cut, the numbers are "
    "those of the table"
)
_ACCOUNT_CAPTION = (
    "The parts of each configuration's step, of its last run, and of a trace's mean step, add up "
    "to the step; what ops are faster than their roof, and what the profiler added, stands left of "
    "0; a broken, pale bar is of an account whose largest parts are not told apart"
)
_MODELS_CAPTION = "The fastest batch of each machine and model; its size stands beside the marker"
_DATA_CAPTION = "The same configuration with data from disk and with tensors made once"
_DEVIATION = "Bars are one standard deviation between repeats to either side"


class _Over(NamedTuple):
    """A figure over batch size; a curve shows the first of the `quantities` that it has."""

    title: str
    axis: str
    caption: str
    quantities: Sequence[Quantity]


_OVER_BATCHES = {
    "gain": _Over("Gain", "Relative {unit}", "Throughput over that of the smallest batch", [gain]),
    "efficiency": _Over(
        "Efficiency",
        "Share of the compute peak",
        "Attained FLOP/s over the compute roof of each run's own machine",
        [efficiency],
    ),
    "intensity": _Over(
        "Intensity",
        "FLOP/byte",
        "Filled markers were counted; an open one stands for the whole interval of modelled "
        "bytes, eager below and fused above",
        [intensity],
    ),
    "memory": _Over(
        "Memory",
        "GB",
        "Peak memory that was measured (filled), or the cost model's sum (open) where none was",
        [peak_memory_gb, modelled_memory_gb],
    ),
}
_Shown = TypeVar("_Shown")


class ReportFigure(NamedTuple):
    """A chart, the name of its files, its words, and the names of the runs that it shows.

    Once it is saved it has its number in the report. `interactive` is then trusted markup of the
    same figure; the first one of a report has Plotly's script in it. `data_uri` is the picture, for
    paper and for browsers that run no scripts.
    """

    name: str
    title: str
    caption: str
    chart: Chart
    runs: Sequence[str] = ()
    number: int = 0
    data_uri: str = ""
    interactive: str = ""


def save_figures(
    parts: Mapping[str, Iterable[ReportFigure]], folder: Path
) -> dict[str, list[ReportFigure]]:
    """Save the figures of each part as PNG and SVG, numbered from 1.

    A name that another one has gets a number.
    """
    names: list[str] = []

    def saved(one: ReportFigure) -> ReportFigure:
        names.append(one.name)
        name, number = file_names(names)[-1], len(names)
        png, svg = save_figure(draw_chart(one.chart), folder, name)
        shown = min(png, svg, key=lambda path: path.stat().st_size)
        kind = "png" if shown is png else "svg+xml"
        encoded = base64.b64encode(shown.read_bytes()).decode("ascii")
        drawn = figure_html(interactive_chart(one.chart), name, with_script=number == 1)
        data_uri = f"data:image/{kind};base64,{encoded}"
        return one._replace(name=name, number=number, data_uri=data_uri, interactive=drawn)

    return {part: [saved(one) for one in figures] for part, figures in parts.items()}


def report_figures(
    runs: Sequence[Run],
    inside: Mapping[str, PlacedProfile | PlacedTrace],
    across: AcrossMachines,
) -> dict[str, Iterable[ReportFigure]]:
    """Return the figures of each part of the report, in its order.

    `inside` are profiles and traces by the names of their parts.
    """
    colours = model_colours([*(run.arch for run in runs), *map(_arch, inside.values())])
    placed = [run for run in runs if run.point]
    machines = grouped(placed, lambda run: run.env)
    several = len(machines) > 1

    def roofline(name: str, title: str, placed: Sequence[Run], caption: str = "") -> ReportFigure:
        chart = run_chart(placed, colours=colours)
        return ReportFigure(name, title, caption, chart, [run.name for run in placed])

    title = f"Roofline{', all machines' * several}"
    return {
        "roofline": [
            *([roofline("roofline", title, placed, _ROOFLINE_CAPTION)] if placed else []),
            *_accounts(runs, [one for one in inside.values() if isinstance(one, PlacedTrace)]),
        ],
        "complexity": _of_batches(runs, colours, "intensity memory"),
        "measurements": _iterations(runs, colours),
        "machines": (
            roofline(f"roofline-{env}", f"Roofline of {env}", machines[env])
            for env in machines
            if several
        ),
        **{
            name: _inside(one, name, colours.get(_arch(one), OTHER_MODELS))
            for name, one in inside.items()
        },
        "across": _across(across, colours),
        "runs": run_figures(runs, colours),
    }


def _accounts(runs: Sequence[Run], traces: Sequence[PlacedTrace]) -> Iterator[ReportFigure]:
    of_runs = newest_accounts(runs)
    accounts = [(run.label, account) for run, account in of_runs]
    if accounts := [*accounts, *((trace.label, trace.account) for trace in traces)]:
        title, names = "Where the time of a step goes", [run.name for run, _ in of_runs]
        yield ReportFigure("accounts", title, _ACCOUNT_CAPTION, account_chart(accounts), names)


def _arch(one: PlacedProfile | PlacedTrace) -> str:
    return one.record.config.arch if isinstance(one, PlacedProfile) else one.record.arch or ""


def _inside(one: PlacedProfile | PlacedTrace, name: str, colour: str) -> Iterator[ReportFigure]:
    """The ops of a profile or a trace, and a profile's kernels, as far as it has them."""
    if isinstance(one, PlacedTrace):
        if one.kinds.placed:
            title = f"Ops of trace {one.number}, {one.label}"
            chart = op_chart(one.kinds, one.used, colour=colour)
            yield ReportFigure(f"ops-{name}", title, _OPS_CAPTION, chart)
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
    if found := [(pair, row) for pair in across.against for row in pair.counted]:
        runs = dict.fromkeys(name for _, row in found for name in row["runs"].names)
        yield ReportFigure("times-as-fast", title, caption, speed_up_chart(found, colours), [*runs])


def run_figures(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    """Yield every figure of the analysis that has something to show; each says of which runs."""
    measured, unit = [run for run in runs if run.samples_per_s], rate_unit(sample_of(runs))
    rated = _by_sample(measured, lambda run: run.sample, "throughput", "Throughput")
    for part, name, title in rated:
        over = _Over(title, rate_unit(part[0].sample).capitalize(), _DEVIATION, [throughput])
        yield from _over_batches(part, name, over, colours)
    yield from _of_batches(runs, colours, "gain efficiency")
    groups = group_runs(runs)
    if len({(group.env, group.arch) for group in groups}) > 1:
        best = _by_sample(groups, lambda group: group.sample, "models", "Models and machines")
        for those, name, title in best:
            chart = models_chart(those, colours)
            yield ReportFigure(name, title, _MODELS_CAPTION, chart, names_of(those))
    found = scatter_rows(runs)
    if sum(row["configurations"] for row in found) > 1:  # of one the table's SD says the same
        caption = f"Relative standard deviation of {unit} between repeats of one configuration"
        names = [name for row in found for name in row["runs"].names]
        title, chart = "Variability by machine", variability_chart(found)
        yield ReportFigure("variability", title, caption, chart, names)
    data = ("real-synthetic", "Real against synthetic data")
    for pairs, name, title in _by_sample(synthetic_pairs(groups), lambda one: one[0].sample, *data):
        chart, both = real_synthetic_chart(pairs, colours), chain.from_iterable(pairs)
        yield ReportFigure(name, title, _DATA_CAPTION, chart, names_of(both))


def _of_batches(
    runs: Sequence[Run], colours: Mapping[str, str], names: str
) -> Iterator[ReportFigure]:
    for name in names.split():
        over = _OVER_BATCHES[name]
        axis = over.axis.format(unit=rate_unit(sample_of(runs)))
        yield from _over_batches(runs, name, over._replace(axis=axis), colours)


def _by_sample(
    shown: Iterable[_Shown], sample_of: Callable[[_Shown], Sample], name: str, title: str
) -> Iterator[tuple[list[_Shown], str, str]]:
    """What trains on each kind of sample, with the name and the title of its figure.

    Images/s and sequences/s share no axis.
    """
    kinds = grouped(shown, sample_of)
    for sample, part in kinds.items():
        several = len(kinds) > 1
        yield part, f"{name}{f'-{sample}s' * several}", f"{title}{f', {sample}s' * several}"


def _over_batches(
    runs: Sequence[Run], name: str, over: _Over, colours: Mapping[str, str]
) -> Iterator[ReportFigure]:
    """One figure per machine that has a curve of two batch sizes or more.

    All have one kind of axis, to be read beside each other.
    """
    machines = grouped(curves_of(runs, *over.quantities), lambda curve: curve.of.env)
    log = spans_widely(chain.from_iterable(machines.values()))
    for env, shown in machines.items():
        if any(len(curve.groups) > 1 for curve in shown):
            chart = batch_chart(shown, over.axis, colours=colours, logarithmic=log)
            names = [run.name for run in runs if run.env == env and run.samples_per_s]
            title = f"{over.title} over batch size, {env}"
            yield ReportFigure(f"{name}-{env}", title, over.caption, chart, names)


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
        "The windows that drifted, and those with most outliers; a triangle is an iteration of "
        "over 1.6 times the median",
        panel_chart(panels),
        [run.name for run in shown],
    )
