"""Which figures a report has, and their files.

A figure is named by what it shows, `throughput-lab.svg` say, and keeps its name when others appear.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
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
from analysis.figures.rows import (
    account_chart,
    distributions_chart,
    speed_up_chart,
    trace_panel,
    traced_runs,
)
from analysis.findings.bottlenecks import synthetic_pairs
from analysis.findings.differences import scatter_rows
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
    "0; a broken, pale bar is of an account whose largest part is not sure"
)
_MODELS_CAPTION = "The fastest batch of each machine and model; its size stands beside the marker"
_DATA_CAPTION = "The same configuration with data from disk and with tensors made once"


class _Over(NamedTuple):
    """A figure over batch size; a curve shows the first of the `quantities` that it has."""

    title: str
    axis: str
    caption: str
    quantities: Sequence[Quantity]


_OVER_BATCHES = {
    "throughput": _Over(
        "Throughput",
        "{unit}",
        "Bars are one standard deviation between repeats to either side",
        [throughput],
    ),
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
_Item = TypeVar("_Item")
#: Of a name, so that whole paths fit on every system.
_MAX_LETTERS = 80


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


def file_names(labels: Iterable[str]) -> list[str]:
    """Return a part of a file name per label: `amd-epyc (1)` becomes `amd-epyc-1`.

    A name that an earlier label has gets `-2` and so on. Upper and lower case are the same, as on
    macOS and Windows.
    """
    found: dict[str, str] = {}
    for label in labels:
        safe = re.sub(r"[^A-Za-z0-9_.]+", "-", label)[:_MAX_LETTERS].strip("-.") or "unnamed"
        names = chain([safe], (f"{safe}-{number}" for number in count(2)))
        name = next(name for name in names if name.casefold() not in found)
        found[name.casefold()] = name
    return list(found.values())


def save_figures(
    parts: Mapping[str, Iterable[ReportFigure]], folder: Path
) -> dict[str, list[ReportFigure]]:
    """Save the figures of each part as PNG and SVG, numbered from 1.

    A name that another one has gets a number.
    """
    names: list[str] = []

    def saved(figure: ReportFigure) -> ReportFigure:
        names.append(figure.name)
        name, number = file_names(names)[-1], len(names)
        png, svg = save_figure(draw_chart(figure.chart), folder, name)
        smaller = min(png, svg, key=lambda path: path.stat().st_size)
        kind = "png" if smaller is png else "svg+xml"
        encoded = base64.b64encode(smaller.read_bytes()).decode("ascii")
        drawn = figure_html(interactive_chart(figure.chart), name, with_script=number == 1)
        data_uri = f"data:image/{kind};base64,{encoded}"
        return figure._replace(name=name, number=number, data_uri=data_uri, interactive=drawn)

    return {part: [saved(figure) for figure in figures] for part, figures in parts.items()}


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

    def roofline(name: str, title: str, placed: Sequence[Run], caption: str = "") -> ReportFigure:
        chart = run_chart(placed, colours=colours)
        return ReportFigure(name, title, caption, chart, [run.name for run in placed])

    title = "Roofline, all machines" if len(machines) > 1 else "Roofline"
    return {
        "roofline": [
            *([roofline("roofline", title, placed, _ROOFLINE_CAPTION)] if placed else []),
            *_accounts(runs, [step for step in inside.values() if isinstance(step, PlacedTrace)]),
        ],
        "complexity": _over_batches(runs, ("intensity", "memory"), colours),
        "measurements": _iterations(runs, colours),
        "machines": (
            roofline(f"roofline-{env}", f"Roofline of {env}", of_machine)
            for env, of_machine in machines.items()
            if len(machines) > 1
        ),
        **{
            name: _inside(step, name, colours.get(_arch(step), OTHER_MODELS))
            for name, step in inside.items()
        },
        "across": _across(across, colours),
        "runs": run_figures(runs, colours),
    }


def _accounts(runs: Sequence[Run], traces: Sequence[PlacedTrace]) -> Iterator[ReportFigure]:
    of_runs = newest_accounts(runs)
    accounts = [(run.label, account) for run, account in of_runs]
    accounts += [(trace.label, trace.account) for trace in traces]
    if accounts:
        title, names = "Where the time of a step goes", [run.name for run, _ in of_runs]
        yield ReportFigure("accounts", title, _ACCOUNT_CAPTION, account_chart(accounts), names)


def _arch(step: PlacedProfile | PlacedTrace) -> str:
    return step.record.config.arch if isinstance(step, PlacedProfile) else step.record.arch or ""


def _inside(step: PlacedProfile | PlacedTrace, name: str, colour: str) -> Iterator[ReportFigure]:
    """The ops of a profile or a trace, and a profile's kernels, as far as it has them."""
    ops, of = (step.ops, step.label) if isinstance(step, PlacedProfile) else (step.kinds, "")
    if ops is not None and (of or ops.placed):
        chart = op_chart(ops, step.used, colour=colour)
        title = f"Ops of {of or f'trace {step.number}, {step.label}'}"
        yield ReportFigure(f"ops-{name}", title, _OPS_CAPTION, chart)
    if isinstance(step, PlacedProfile) and step.kernels is not None and step.record.resolved:
        chart = kernel_chart(step.kernels, step.used, math_mode=step.record.resolved.math_mode)
        yield ReportFigure(f"kernels-{name}", f"Kernels of {step.label}", _KERNELS_CAPTION, chart)


def _across(across: AcrossMachines, colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    """How many times as fast as the reference each machine is; none where none shares."""
    shared = [(pair, row) for pair in across.against for row in pair.counted]
    if shared:
        unit = rate_unit(common_sample(pair.sample for pair in across.against))
        caption = (
            f"{unit.capitalize()} over those of {across.reference} at the same configuration, with "
            "the 95 % interval; open where neither machine has repeats. Batches that spilled out "
            "of memory and two precisions of one name are in the table only"
        )
        runs = list(dict.fromkeys(name for _, row in shared for name in row["runs"].names))
        title, chart = f"Times as fast as {across.reference}", speed_up_chart(shared, colours)
        yield ReportFigure("times-as-fast", title, caption, chart, runs)


def run_figures(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    """Yield every figure of the analysis that has something to show; each says of which runs."""
    measured, groups = [run for run in runs if run.samples_per_s], group_runs(runs)
    for suffix, part in _by_sample(measured, lambda run: run.sample):
        yield from _over_batches(part, ("throughput",), colours, suffix)
    yield from _over_batches(runs, ("gain", "efficiency"), colours)
    if len({(group.env, group.arch) for group in groups}) > 1:
        for suffix, of_kind in _by_sample(groups, lambda group: group.sample):
            names, chart = names_of(of_kind), models_chart(of_kind, colours)
            yield _suffixed("models", "Models and machines", suffix, _MODELS_CAPTION, chart, names)
    rows = scatter_rows(runs)
    if sum(row["configurations"] for row in rows) > 1:  # of one the table's SD says the same
        unit = rate_unit(sample_of(runs))
        caption = f"Relative standard deviation of {unit} between repeats of one configuration"
        names = tuple(name for row in rows for name in row["runs"].names)
        title, chart = "Variability by machine", variability_chart(rows)
        yield ReportFigure("variability", title, caption, chart, names)
    for suffix, pairs in _by_sample(synthetic_pairs(groups), lambda pair: pair[0].sample):
        names = names_of(chain.from_iterable(pairs))
        title, chart = "Real against synthetic data", real_synthetic_chart(pairs, colours)
        yield _suffixed("real-synthetic", title, suffix, _DATA_CAPTION, chart, names)


def _by_sample(
    items: Iterable[_Item], sample_of: Callable[[_Item], Sample]
) -> Iterator[tuple[str, list[_Item]]]:
    """What trains on each kind of sample, with a word for it where there are several.

    Images/s and sequences/s share no axis.
    """
    kinds = grouped(items, sample_of)
    for sample, of_kind in kinds.items():
        yield f"{sample}s" if len(kinds) > 1 else "", of_kind


def _suffixed(
    name: str, title: str, suffix: str, caption: str, chart: Chart, runs: Sequence[str]
) -> ReportFigure:
    """A figure with the kind of sample in its name and its title, where there are several."""
    if suffix:
        name, title = f"{name}-{suffix}", f"{title}, {suffix}"
    return ReportFigure(name, title, caption, chart, runs)


def _over_batches(
    runs: Sequence[Run], names: Iterable[str], colours: Mapping[str, str], suffix: str = ""
) -> Iterator[ReportFigure]:
    """One figure per machine that has a curve of two batch sizes or more, of each of `names`.

    All of a name have one kind of axis, to be read beside each other.
    """
    unit = rate_unit(sample_of(runs))
    for name in names:
        over = _OVER_BATCHES[name]
        label = over.axis.format(unit=unit)
        machines = grouped(curves_of(runs, *over.quantities), lambda curve: curve.of.env)
        log = spans_widely(chain.from_iterable(machines.values()))
        for env, curves in machines.items():
            if any(len(curve.groups) > 1 for curve in curves):
                axis = f"{label[:1].upper()}{label[1:]}"
                chart = batch_chart(curves, axis, colours=colours, logarithmic=log)
                shown = [run.name for run in runs if run.env == env and run.samples_per_s]
                of = f"{name}-{suffix}" if suffix else name
                title = f"{over.title}{f', {suffix}' if suffix else ''} over batch size, {env}"
                yield ReportFigure(f"{of}-{env}", title, over.caption, chart, shown)


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
    ordered = traced_runs(timed)
    yield ReportFigure(
        "iterations-in-order",
        "Iterations in order",
        "The windows that drifted, and those with most outliers; a triangle is an iteration of "
        "over 1.6 times the median",
        panel_chart([trace_panel(run, colours.get(run.arch, OTHER_MODELS)) for run in ordered]),
        [run.name for run in ordered],
    )
