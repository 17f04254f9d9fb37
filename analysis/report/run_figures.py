"""The report's charts of runs: over batch size, side by side, repeats and iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from analysis.comparison.machines.across import AcrossMachines
from analysis.figures.charts.batch_charts import batch_chart, prediction_panel, spans_widely
from analysis.figures.charts.batch_curves import (
    Curve,
    device_memory_gb,
    efficiency_curves,
    intensity_curves,
    memory_curves,
    modelled_memory_curves,
    scaling_curves,
    throughput_curves,
)
from analysis.figures.charts.chart import Chart, panel_chart
from analysis.figures.charts.iteration_charts import (
    distributions_chart,
    trace_panel,
    traced_runs,
)
from analysis.figures.charts.row_charts import (
    models_chart,
    real_synthetic_chart,
    variability_chart,
)
from analysis.figures.charts.speed_up_chart import speed_up_charts
from analysis.figures.style import OTHER_MODELS
from analysis.findings.report_finding import names_of
from analysis.findings.waiting import synthetic_pairs
from analysis.report.figure_files import FigureFile, FigureFolder
from analysis.report.tables.batch_tables import Predicted, predicted_curves
from analysis.report.tables.group_tables import pooled_scatters
from analysis.runs.groups import group_runs, sample_of
from analysis.runs.quantities import three_digits
from analysis.runs.run import Run
from bench.config import Sample, common_sample, rate_unit

#: Panels of one figure; further models go to the next.
_PANELS = 8
_Shown = TypeVar("_Shown")


class _Figure(NamedTuple):
    """A chart, the name of its file, and the names of the runs that it shows."""

    name: str
    title: str
    caption: str
    chart: Chart
    runs: Sequence[str]


def draw_runs(runs: Sequence[Run], folder: FigureFolder) -> list[FigureFile]:
    """Draw every figure of runs that has something to show; each says which runs it shows."""
    colours, unit = folder.colours, rate_unit(sample_of(runs))
    figures = chain(
        _throughput(runs, folder),
        _over_batches(runs, folder, scaling_curves(runs), "gain", "Gain", f"Relative {unit}",
                      "Throughput over that of the smallest batch"),
        _over_batches(runs, folder, efficiency_curves(runs), "efficiency", "Efficiency",
                      "Share of the compute peak",
                      "Attained FLOP/s over the compute roof of each run's own machine"),
        _over_batches(runs, folder, intensity_curves(runs), "intensity", "Intensity", "FLOP/byte",
                      "Filled markers were counted; an open one stands for the whole interval of "
                      "modelled bytes, eager below and fused above"),
        _memory(runs, folder),
        _models(runs, colours),
        _variability(runs),
        _real_synthetic(runs, colours),
        _iteration_times(runs, colours),
        _traces(runs, colours),
        _predictions(runs, folder),
    )  # fmt: skip
    return [
        folder.add_chart(one.chart, one.name, one.title, one.caption, one.runs) for one in figures
    ]


def draw_across(across: AcrossMachines, folder: FigureFolder) -> list[FigureFile]:
    """Draw how many times as fast as the reference each machine is; nothing where none shares."""
    unit = rate_unit(common_sample(pair.sample for pair in across.against))
    caption = (
        f"{unit.capitalize()} over those of {across.reference} at the same configuration, with the "
        "95 % interval; open where neither machine has repeats. Batches that spilled out of memory "
        "and two precisions of one name are in the table only"
    )
    found = []
    for page, part in enumerate(speed_up_charts(across.against, folder.colours), start=1):
        found.append(
            folder.add_chart(
                part.chart,
                "times-as-fast" + (f"-{page}" if page > 1 else ""),
                f"Times as fast as {across.reference}",
                caption,
                part.runs,
            )
        )
    return found


def _over_batches(
    runs: Sequence[Run],
    folder: FigureFolder,
    curves: Sequence[Curve],
    name: str,
    quantity: str,
    label: str,
    caption: str,
    limits: Mapping[str, tuple[float, str]] | None = None,
) -> Iterator[_Figure]:
    """One figure per machine that has a curve of two batch sizes or more.

    All have one kind of axis, to be read beside each other. `limits` are of machines.
    """
    machines: dict[str, list[Curve]] = {}
    for curve in curves:
        machines.setdefault(curve.env, []).append(curve)
    logarithmic = spans_widely(curves)
    for env, shown in machines.items():
        if all(len(curve.batches) < 2 for curve in shown):
            continue
        chart = batch_chart(
            shown,
            label,
            colours=folder.colours,
            logarithmic=logarithmic,
            limit=(limits or {}).get(env),
        )
        names = [run.name for run in runs if run.env == env and run.samples_per_s]
        title = f"{quantity} over batch size, {env}"
        yield _Figure(f"{name}-{folder.machines[env]}", title, caption, chart, names)


def _throughput(runs: Sequence[Run], folder: FigureFolder) -> Iterator[_Figure]:
    """One figure per machine and kind of sample: images/s and sequences/s share no axis."""
    caption = "Bars are one standard deviation between repeats to either side"
    curves = throughput_curves(runs)
    for part, name, of_kind in _by_sample(curves, lambda curve: curve.sample, "throughput"):
        sample = part[0].sample
        yield from _over_batches(
            [run for run in runs if run.sample == sample],
            folder,
            part,
            name,
            f"Throughput{of_kind}",
            rate_unit(sample).capitalize(),
            caption,
        )


def _memory(runs: Sequence[Run], folder: FigureFolder) -> Iterator[_Figure]:
    measured = memory_curves(runs)
    known = {curve.key for curve in measured}
    curves = measured + [one for one in modelled_memory_curves(runs) if one.key not in known]
    limits = {
        env: (total_gb, f"the device's memory: {three_digits(total_gb)} GB")
        for env, total_gb in device_memory_gb(runs).items()
    }
    caption = (
        "Peak memory that was measured (filled), or the cost model's sum (open) where none was; "
        "a dashed line is the device's memory, where it is near"
    )
    yield from _over_batches(runs, folder, curves, "memory", "Memory", "GB", caption, limits)


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


def _models(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Figure]:
    groups = group_runs(runs)
    if len({(group.env, group.arch) for group in groups}) > 1:
        for part, name, of_kind in _by_sample(groups, lambda group: group.sample, "models"):
            yield _Figure(
                name,
                f"Models and machines{of_kind}",
                "The fastest batch of each machine and model; its size stands above the marker",
                models_chart(part, colours=colours),
                names_of(part),
            )


def _variability(runs: Sequence[Run]) -> Iterator[_Figure]:
    if found := pooled_scatters(runs):
        yield _Figure(
            "variability",
            "Variability by machine",
            f"Relative standard deviation of {rate_unit(sample_of(runs))} between repeats of one "
            "configuration",
            variability_chart(found),
            names_of(group for one in found for group in one.groups),
        )


def _real_synthetic(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Figure]:
    pairs = synthetic_pairs(group_runs(runs))
    for part, name, of_kind in _by_sample(pairs, lambda pair: pair[0].sample, "real-synthetic"):
        yield _Figure(
            name,
            f"Real against synthetic data{of_kind}",
            "The same configuration with data from disk and with tensors made once",
            real_synthetic_chart(part, colours=colours),
            names_of(group for pair in part for group in pair),
        )


def _iteration_times(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Figure]:
    if timed := [run for run in runs if len(run.iteration_times_s) > 1]:
        yield _Figure(
            "iteration-times",
            "Iteration times",
            "A thick line has the quartiles, a thin one 5 to 95 %. Outliers are over five robust "
            "deviations from the median; none is left out",
            distributions_chart(timed, colours=colours),
            [run.name for run in timed],
        )


def _traces(runs: Sequence[Run], colours: Mapping[str, str]) -> Iterator[_Figure]:
    shown = traced_runs([run for run in runs if len(run.iteration_times_s) > 1])
    if shown:
        panels = [trace_panel(run, colours.get(run.arch, OTHER_MODELS)) for run in shown]
        caption = (
            "The windows that drifted most, then those with most outliers; a triangle is an "
            "iteration of over 1.6 times the median, a dashed line where a drift set in"
        )
        names = [run.name for run in shown]
        yield _Figure(
            "iterations-in-order", "Iterations in order", caption, panel_chart(panels), names
        )


def _predictions(runs: Sequence[Run], folder: FigureFolder) -> Iterator[_Figure]:
    """One figure per machine, and further ones for models that it has no room for."""
    machines: dict[str, list[Predicted]] = {}
    for one in predicted_curves(runs):
        machines.setdefault(one.group.first.env, []).append(one)
    caption = "Markers are measured; the line is the model, the band a new measurement's 95 %"
    for env, found in machines.items():
        title = f"Throughput predicted between batch sizes, {env}"
        for page, start in enumerate(range(0, len(found), _PANELS), start=1):
            part = found[start : start + _PANELS]
            panels = [
                prediction_panel(
                    curve,
                    f"{group.model_label} {group.precision_label}",
                    folder.colours.get(group.arch, OTHER_MODELS),
                    group.sample,
                )
                for group, curve in part
            ]
            name = f"prediction-{folder.machines[env]}" + (f"-{page}" if page > 1 else "")
            names = [name for one in part for name in one.curve.runs]
            yield _Figure(name, title, caption, panel_chart(panels), names)
