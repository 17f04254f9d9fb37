"""Which figures a report has, and their files.

A figure is named by what it shows, `throughput-lab.svg` say, and keeps its name when others appear.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple, TypeVar

from analysis.comparison.across import AcrossMachines
from analysis.figures import (
    draw_chart,
    kernel_chart,
    model_colours,
    op_chart,
    run_chart,
    save_figure,
)
from analysis.figures.batches import batch_charts
from analysis.figures.chart import OTHER_MODELS, Chart, panel_chart
from analysis.figures.interactive import figure_html, interactive_chart
from analysis.figures.rows import (
    account_chart,
    models_chart,
    real_synthetic_chart,
    speed_up_chart,
    variability_chart,
)
from analysis.figures.times import distributions_chart, trace_panel, traced_runs
from analysis.findings.bottlenecks import synthetic_pairs
from analysis.findings.differences import scatter_rows
from analysis.presentation.table import grouped
from analysis.runs.groups import Runs, names_of, newest_accounts
from analysis.runs.place import PlacedProfile
from analysis.runs.run import Run
from analysis.scaling import scaling_charts, scalings
from analysis.traces.placed import PlacedTrace
from bench.config import Sample

_Item = TypeVar("_Item")
#: Of a name, so that whole paths fit on every system.
_MAX_LETTERS = 80


class ReportFigure(NamedTuple):
    """A chart of a kind, what tells it from others of its kind, and the names of its runs.

    The template has the title and the caption of each kind; `title` instead of the usual one. Once
    it is saved it has its number in the report and the name of its files. `interactive` is then
    trusted markup of the same figure, `data_uri` the picture, for paper and for browsers that run
    no scripts.
    """

    kind: str
    chart: Chart
    runs: Sequence[str] = ()
    of: tuple[str, ...] = ()
    title: str = ""
    name: str = ""
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
        names.append("-".join((figure.kind, *figure.of)))
        name, number = file_names(names)[-1], len(names)
        png, svg = save_figure(draw_chart(figure.chart), folder, name)
        smaller = min(png, svg, key=lambda path: path.stat().st_size)
        kind = "png" if smaller is png else "svg+xml"
        encoded = base64.b64encode(smaller.read_bytes()).decode("ascii")
        drawn = figure_html(interactive_chart(figure.chart), name)
        data_uri = f"data:image/{kind};base64,{encoded}"
        size = replace(figure.chart, panels=())  # the marks of thousands of runs are not kept
        return figure._replace(
            chart=size, name=name, number=number, data_uri=data_uri, interactive=drawn
        )

    return {part: [saved(figure) for figure in figures] for part, figures in parts.items()}


def report_figures(
    runs: Runs,
    inside: Mapping[str, PlacedProfile | PlacedTrace],
    across: AcrossMachines,
) -> dict[str, Iterable[ReportFigure]]:
    """Return the figures of each part of the report, in its order.

    `inside` are profiles and traces by the names of their parts.
    """
    colours = model_colours([*(run.arch for run in runs), *map(_arch, inside.values())])
    placed = [run for run in runs if run.point]
    machines = grouped(placed, lambda run: run.env)
    several = machines if len(machines) > 1 else {}

    def roofline(placed: Sequence[Run], *of: str) -> ReportFigure:
        chart = run_chart(placed, colours=colours)
        return ReportFigure("roofline", chart, _names(placed), of)

    return {
        "roofline": chain(
            (roofline(those) for those in ([placed] if placed else [])),
            _accounts(runs, [step for step in inside.values() if isinstance(step, PlacedTrace)]),
        ),
        "complexity": _over_batches(runs, ("intensity", "memory"), colours),
        "measurements": _iterations(runs, colours),
        "machines": (roofline(those, env) for env, those in several.items()),
        **{
            name: _inside(step, name, colours.get(_arch(step), OTHER_MODELS))
            for name, step in inside.items()
        },
        "across": _across(across, colours),
        "runs": run_figures(runs, colours),
        "scaling": _scaling(runs, colours),
    }


def _names(runs: Iterable[Run]) -> list[str]:
    return [run.name for run in runs]


def _arch(step: PlacedProfile | PlacedTrace) -> str:
    return step.record.config.arch if isinstance(step, PlacedProfile) else step.record.arch or ""


def _accounts(runs: Runs, traces: Sequence[PlacedTrace]) -> Iterator[ReportFigure]:
    of_runs = newest_accounts(runs)
    accounts = [(run.label, account) for run, account in of_runs]
    accounts += [(trace.label, trace.account) for trace in traces]
    if accounts:
        yield ReportFigure("accounts", account_chart(accounts), _names(run for run, _ in of_runs))


def _iterations(runs: Runs, colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    if timed := [run for run in runs if len(run.iteration_times_s) > 1]:
        yield ReportFigure("iteration-times", distributions_chart(timed, colours), _names(timed))
        ordered = traced_runs(timed)
        panels = [trace_panel(run, colours.get(run.arch, OTHER_MODELS)) for run in ordered]
        yield ReportFigure("iterations-in-order", panel_chart(panels), _names(ordered))


def _inside(step: PlacedProfile | PlacedTrace, name: str, colour: str) -> Iterator[ReportFigure]:
    """The ops of a profile or a trace, and a profile's kernels, as far as it has them."""
    ops = step.ops if isinstance(step, PlacedProfile) else step.kinds
    if ops is not None and (isinstance(step, PlacedProfile) or ops.placed):
        chart = op_chart(ops, step.used, colour=colour)
        yield ReportFigure("ops", chart, (), (name,), f"Ops of {step.label}")
    if isinstance(step, PlacedProfile) and step.kernels is not None and step.record.resolved:
        chart = kernel_chart(step.kernels, step.used, math_mode=step.record.resolved.math_mode)
        yield ReportFigure("kernels", chart, (), (name,), f"Kernels of {step.label}")


def _across(across: AcrossMachines, colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    """How many times as fast as the reference each machine is; none where none shares."""
    shared = [(pair, row) for pair in across.against for row in pair.counted]
    if shared:
        runs = list(dict.fromkeys(name for _, row in shared for name in row["runs"].names))
        title, chart = f"Times as fast as {across.reference}", speed_up_chart(shared, colours)
        yield ReportFigure("times-as-fast", chart, runs, title=title)


def _scaling(runs: Runs, colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    found = scalings(runs)
    for kind, chart in scaling_charts(found, colours).items():
        names = dict.fromkeys(name for of in found if of.kind == kind for name in of.names)
        yield ReportFigure("scaling", chart, [*names], (kind,))


def run_figures(runs: Runs, colours: Mapping[str, str]) -> Iterator[ReportFigure]:
    """Yield every figure of the analysis that has something to show; each says of which runs."""
    measured, groups = [run for run in runs if run.samples_per_s], runs.groups
    for kind, part in _by_sample(measured, lambda run: run.sample):
        yield from _over_batches(Runs(part), ("throughput",), colours, *kind)
    yield from _over_batches(runs, ("gain", "efficiency"), colours)
    if len({(group.env, group.arch) for group in groups}) > 1:
        for kind, alike in _by_sample(groups, lambda group: group.sample):
            yield ReportFigure("models", models_chart(alike, colours), names_of(alike), kind)
    rows = scatter_rows(runs)
    if sum(row["configurations"] for row in rows) > 1:  # of one the table's SD says the same
        names = [name for row in rows for name in row["runs"].names]
        yield ReportFigure("variability", variability_chart(rows), names)
    for kind, pairs in _by_sample(synthetic_pairs(groups), lambda pair: pair[0].sample):
        chart = real_synthetic_chart(pairs, colours)
        yield ReportFigure("real-synthetic", chart, names_of(chain.from_iterable(pairs)), kind)


def _by_sample(
    items: Iterable[_Item], sample_of: Callable[[_Item], Sample]
) -> Iterator[tuple[tuple[str, ...], list[_Item]]]:
    """What trains on each kind of sample, with a word for it where there are several.

    Images/s and sequences/s share no axis.
    """
    kinds = grouped(items, sample_of)
    for sample, alike in kinds.items():
        yield (f"{sample}s",) if len(kinds) > 1 else (), alike


def _over_batches(
    runs: Runs, kinds: Iterable[str], colours: Mapping[str, str], *of: str
) -> Iterator[ReportFigure]:
    """One figure per machine that has a curve of two batch sizes or more, of each of `kinds`."""
    for kind in kinds:
        for env, chart in batch_charts(runs, kind, colours).items():
            shown = [run.name for run in runs if run.env == env and run.samples_per_s]
            yield ReportFigure(kind, chart, shown, (*of, env))
