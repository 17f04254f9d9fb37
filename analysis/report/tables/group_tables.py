"""The report's tables of configurations: work, the matrix, repeats, uplift, devices, batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from analysis.findings.batches import (
    before_cliff,
    cliff_of,
    gain_per_doubling,
    knee_of,
    percent_change,
)
from analysis.findings.differences import Uplift, scatters, uplifts
from analysis.findings.report_finding import names_of
from analysis.prediction import PredictedCurve, fit_curve, measured_batches
from analysis.prediction.curve import FEWEST_SIZES, StepModel, least_image_s
from analysis.report.tables.numbered_table import (
    Column,
    RunNumbers,
    Table,
    make_table,
    number,
    of_run,
    text,
    whole,
)
from analysis.runs.groups import (
    Group,
    batch_curves,
    group_runs,
    on_one_device,
    scaling_efficiency,
)
from analysis.runs.placed import THROUGHPUT, PlacedRun, Run, recorded
from analysis.runs.quantities import interval, percent, three_digits
from analysis.statistics import RatioEstimate, RepeatEstimate
from bench.records import Complexity


def matrix_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """What was asked for: machines x models x precisions, their batch sizes and iterations."""
    planned: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        planned.setdefault((run.env, run.arch, run.precision), []).append(run)
    of_first: list[Column[list[Run]]] = of_run(lambda members: members[0])
    return make_table(
        "matrix",
        "Run matrix",
        planned.values(),
        *of_first,
        text("batch_sizes", "batch sizes", _batch_sizes),
        text("data", "data", lambda members: _asked(members, "data"), wraps_em=7),
        text("warmup_iterations", "warm-up", lambda members: _asked(members, "warmup_iters")),
        text("iterations", "iterations", lambda members: _asked(members, "iters")),
        whole("measured", "measured", lambda members: sum(r.outcome == "ok" for r in members)),
        whole("failed", "failed", lambda members: sum(r.outcome != "ok" for r in members)),
        text("runs", "runs", lambda members: numbers.listed(run.name for run in members)),
    )


def _batch_sizes(runs: list[Run]) -> str:
    return ", ".join(map(str, sorted({run.batch_size for run in runs if run.batch_size})))


def _asked(runs: Sequence[Run], name: str) -> str | None:
    configs = [run.record.config for run in runs if run.record]
    return ", ".join(sorted({f"{getattr(config, name)}" for config in configs})) or None


def imported_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Runs that were measured elsewhere, with what their source says and nothing more."""
    of_each: list[Column[Run]] = of_run(lambda run: run)
    machine, model, precision = of_each
    return make_table(
        "imported",
        "Imported measurements",
        (run for run in runs if run.imported_from is not None),
        whole("number", "no.", lambda run: numbers.by_name[run.name]),
        text("run", "run", lambda run: run.name),
        text("source", "source", lambda run: run.imported_from),
        machine,
        text("device", "device", lambda run: run.settings.get("device"), wraps_em=8),
        model,
        precision,
        whole("batch_size", "batch", lambda run: run.batch_size),
        whole("repeats", "repeats", lambda run: run.count),
        number("throughput_images_per_s", "images/s", lambda run: run.throughput_images_per_s),
        number("sd_images_per_s", "SD", lambda run: run.deviations.get(THROUGHPUT)),
    )


def complexity_table(runs: Sequence[PlacedRun], numbers: RunNumbers) -> Table:
    """Work, traffic and memory of one training step, once per model, batch size and precision."""

    def key(one: Complexity) -> tuple[str, int, int, str]:
        return one.arch, one.image_size, one.batch_size, one.precision

    found: dict[tuple[str, int, int, str], Complexity] = {}
    names: dict[tuple[str, int, int, str], list[str]] = {}
    for run in runs:
        if (counted := run.record.complexity) is not None:
            found.setdefault(key(counted), counted)
            names.setdefault(key(counted), []).append(run.name)
    return make_table(
        "complexity",
        "Work, traffic and memory of one training step by the cost model",
        [found[place] for place in sorted(found)],
        text("arch", "model", lambda one: one.arch),
        whole("image_size", "pixels", lambda one: one.image_size),
        whole("batch_size", "batch", lambda one: one.batch_size),
        text("precision", "precision", lambda one: one.precision),
        number("parameters_million", "M parameters", lambda one: one.parameters / 1e6),
        number("activations_million_per_image", "M activations an image",
               lambda one: one.activations / 1e6),
        number("forward_gmac_per_image", "forward GMAC an image",
               lambda one: one.forward_macs / one.batch_size / 1e9),
        number("step_gflop_per_image", "step GFLOP an image",
               lambda one: one.step_flops_per_image / 1e9),
        number("compulsory_gb", "GB a step, compulsory", lambda one: one.compulsory_bytes / 1e9),
        number("fused_gb", "fused", lambda one: one.fused_bytes / 1e9),
        number("eager_gb", "eager", lambda one: one.eager_bytes / 1e9),
        number("weights_gb", "weights GB", lambda one: one.memory.weights_bytes / 1e9),
        number("gradients_gb", "gradients", lambda one: one.memory.gradients_bytes / 1e9),
        number("optimizer_gb", "optimizer", lambda one: one.memory.optimizer_bytes / 1e9),
        number("activations_gb", "activations", lambda one: one.memory.activations_bytes / 1e9),
        text("runs", "runs", lambda one: numbers.listed(names[key(one)])),
    )  # fmt: skip


def repeats_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Images/s of each configuration: mean and deviation of its repeats, and an interval."""
    of_group: list[Column[Group]] = of_run(lambda group: group.first)
    return make_table(
        "repeats",
        "Throughput by configuration, over its repeats",
        group_runs(runs),
        *of_group,
        whole("batch_size", "batch", lambda group: group.batch_size),
        whole("repeats", "repeats", lambda group: group.repeats().count),
        number("mean_images_per_s sd_images_per_s", "images/s, mean +- SD", _mean_and_sd,
               _plus_minus),
        number("low_images_per_s high_images_per_s", "95 % interval",
               lambda group: _ends(group.repeats().interval()), interval),
        number("relative_sd", "SD", lambda group: group.repeats().relative_deviation, percent),
        text("runs", "runs", lambda group: numbers.listed(group.names)),
    )  # fmt: skip


def _mean_and_sd(group: Group) -> tuple[float, float | None]:
    mean, deviation = group.throughput_images_per_s, group.repeats().relative_deviation
    return mean, None if deviation is None else deviation * mean


def _plus_minus(mean: float, deviation: float | None) -> str:
    return three_digits(mean) + ("" if deviation is None else f" +- {three_digits(deviation)}")


def _ends(estimate: RepeatEstimate | RatioEstimate) -> tuple[float | None, float | None]:
    return estimate.low, estimate.high


def uplift_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Each lower precision against fp32 of the same configuration."""
    of_low: list[Column[Uplift]] = of_run(lambda one: one.low.first)
    machine, model, precision = of_low
    return make_table(
        "uplift",
        "Lower precision against fp32",
        uplifts(runs),
        machine,
        model,
        whole("batch_size", "batch", lambda one: one.low.batch_size),
        precision,
        number("images_per_s", "images/s", lambda one: one.low.throughput_images_per_s),
        number("fp32_images_per_s", "fp32", lambda one: one.full.throughput_images_per_s),
        number("uplift", "times as fast", lambda one: one.estimate.ratio),
        number("uplift_low uplift_high", "95 % interval", lambda one: _ends(one.estimate),
               interval),
        text("note", "note", lambda one: "memory spilled" if one.spilled else None),
        text("runs", "runs", lambda one: numbers.listed((*one.low.names, *one.full.names))),
    )  # fmt: skip


def scatter_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """The deviation between repeats by machine, pooled over its configurations."""
    return make_table(
        "scatter",
        "Scatter between repeats by machine",
        scatters(runs),
        text("machine", "machine", lambda one: one.label),
        whole("configurations", "configurations", lambda one: len(one.groups)),
        whole("degrees", "degrees of freedom", lambda one: one.degrees),
        number("relative_sd", "SD between repeats", lambda one: one.deviation, percent),
        text("runs", "runs", lambda one: numbers.listed(names_of(one.groups))),
    )


class _Pair(NamedTuple):
    many: PlacedRun
    one: PlacedRun

    @property
    def efficiency(self) -> float:
        return scaling_efficiency(self.many.record, self.one.record)


def scaling_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Runs on several devices against the same configuration on one."""
    placed = recorded(runs)
    by_record = {run.record.record_id: run for run in placed}
    records = [run.record for run in placed]
    pairs = [
        _Pair(many, by_record[record.record_id])
        for many in placed
        if many.outcome == "ok" and (record := on_one_device(many.record, records)) is not None
    ]
    return make_table(
        "scaling",
        "Scaling over devices: images/s over those of as many single devices",
        [pair for pair in pairs if math.isfinite(pair.efficiency)],
        text("configuration", "configuration", lambda pair: pair.many.label, wraps_em=12),
        whole("devices", "devices", lambda pair: pair.many.record.config.world_size),
        number("images_per_s", "images/s", lambda pair: pair.many.throughput_images_per_s),
        number("images_per_s_on_one", "on one", lambda pair: pair.one.throughput_images_per_s),
        number("scaling_efficiency", "efficiency", lambda pair: pair.efficiency, percent),
        number("communication_share", "communication",
               lambda pair: pair.many.metrics.get("communication_share"), percent),
        text("runs", "runs", lambda pair: numbers.listed((pair.many.name, pair.one.name))),
    )  # fmt: skip


class _Gain(NamedTuple):
    group: Group
    to_smallest: float
    per_doubling: float | None
    note: str | None


def gains_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Each batch size of a curve against the one before it, and the knee."""
    of_group: list[Column[_Gain]] = of_run(lambda gain: gain.group.first)
    return make_table(
        "batch-gains",
        "Gains of larger batches, and the knee",
        [gain for curve in batch_curves(runs) if len(curve) > 1 for gain in _gains(curve)],
        *of_group,
        whole("batch_size", "batch", lambda gain: gain.group.batch_size),
        number("images_per_s", "images/s", lambda gain: gain.group.throughput_images_per_s),
        number("ratio_to_smallest", "of the smallest batch's", lambda gain: gain.to_smallest),
        number("gain_per_doubling", "a doubling gave", lambda gain: gain.per_doubling,
               percent_change),
        text("note", "note", lambda gain: gain.note),
        text("runs", "runs", lambda gain: numbers.listed(gain.group.names)),
    )  # fmt: skip


def _gains(curve: Sequence[Group]) -> Iterator[_Gain]:
    knee, cliff = knee_of(curve), cliff_of(curve)
    steps = [None, *(gain_per_doubling(small, large) for small, large in pairwise(curve))]
    for place, (group, gain) in enumerate(zip(curve, steps, strict=True)):
        note = "knee" if knee is not None and knee.knee is group else None
        if cliff is not None and place >= cliff:
            note = "memory spilled"
        ratio = group.throughput_images_per_s / curve[0].throughput_images_per_s
        yield _Gain(group, ratio, gain, note)


class Predicted(NamedTuple):
    """A fitted curve, and the group of its smallest batch, which stands for its settings."""

    group: Group
    curve: PredictedCurve


def predicted_curves(runs: Sequence[Run]) -> list[Predicted]:
    """Return the model of every curve with three batch sizes or more before any spill."""
    return [
        Predicted(curve[0], fit_curve(measured_batches(curve), least_image_s(before_cliff(curve))))
        for curve in batch_curves(runs)
        if len(before_cliff(curve)) >= FEWEST_SIZES
    ]


def predictions_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """The two terms of each predicted curve, and what it misses batch sizes by."""
    of_group: list[Column[Predicted]] = of_run(lambda one: one.group.first)
    return make_table(
        "predictions",
        "Time of a step as a fixed cost and a cost an image",
        predicted_curves(runs),
        *of_group,
        number("fixed_ms", "ms a step", lambda one: 1e3 * one.curve.model.fixed_s),
        number("per_image_ms", "ms an image", lambda one: 1e3 * one.curve.model.per_image_s),
        number("limit_images_per_s", "images/s at most", lambda one: _limit(one.curve.model)),
        text("measured_batches", "measured batches",
             lambda one: ", ".join(str(batch.batch_size) for batch in one.curve.measured)),
        number("held_out_error", "held-out error", lambda one: one.curve.held_out_error, percent),
        number("worst_held_out", "worst",
               lambda one: max(abs(error) for _, error in one.curve.held_out), percent),
        text("runs", "runs", lambda one: numbers.listed(one.curve.runs)),
    )  # fmt: skip


def _limit(model: StepModel) -> float | None:
    return 1 / model.per_image_s if model.per_image_s > 0 else None
