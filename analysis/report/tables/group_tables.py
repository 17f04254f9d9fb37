"""The report's tables of configurations: work, the matrix, repeats, uplift, devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from analysis.findings.differences import scatters, uplifts
from analysis.report.tables.numbered_table import RunList, RunNumbers, Shown, Table, make_table
from analysis.runs.groups import (
    Group,
    group_runs,
    on_one_device,
    scaling_efficiency,
)
from analysis.runs.placed import PlacedRun, Run, recorded
from analysis.runs.quantities import interval, percent, three_digits
from bench.records import Complexity


@dataclass(frozen=True)
class Configuration:
    """The first columns of tables of configurations."""

    machine: Annotated[str, Shown("machine")]
    arch: Annotated[str, Shown("model")]
    precision: Annotated[str, Shown("precision")]
    batch_size: Annotated[int | None, Shown("batch")]


def configuration(group: Group) -> tuple[str, str, str, int | None]:
    """Return the values of the columns of `Configuration`."""
    return group.first.env, group.first.arch, group.first.precision, group.batch_size


@dataclass(frozen=True)
class _MatrixRow:
    machine: Annotated[str, Shown("machine")]
    arch: Annotated[str, Shown("model")]
    precision: Annotated[str, Shown("precision")]
    batch_sizes: Annotated[str, Shown("batch sizes")]
    data: Annotated[str | None, Shown("data", wraps_em=7)]
    warmup_iterations: Annotated[str | None, Shown("warm-up")]
    iterations: Annotated[str | None, Shown("iterations")]
    measured: Annotated[int, Shown("measured")]
    failed: Annotated[int, Shown("failed")]
    runs: Annotated[RunList, Shown("runs")]


def matrix_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """What was asked for: machines x models x precisions, their batch sizes and iterations."""
    planned: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        planned.setdefault((run.env, run.arch, run.precision), []).append(run)
    rows = [
        _MatrixRow(
            *key,
            batch_sizes=", ".join(
                map(str, sorted({run.batch_size for run in members if run.batch_size is not None}))
            ),
            data=_asked(members, "data"),
            warmup_iterations=_asked(members, "warmup_iters"),
            iterations=_asked(members, "iters"),
            measured=sum(run.outcome == "ok" for run in members),
            failed=sum(run.outcome != "ok" for run in members),
            runs=numbers.listed(run.name for run in members),
        )
        for key, members in planned.items()
    ]
    return make_table("matrix", "Run matrix", _MatrixRow, rows)


def _asked(runs: Iterable[Run], name: str) -> str | None:
    configs = [run.record.config for run in runs if run.record]
    return ", ".join(sorted({f"{getattr(config, name)}" for config in configs})) or None


@dataclass(frozen=True)
class _ImportedRow:
    number: Annotated[int, Shown("no.")]
    run: Annotated[str, Shown("run")]
    source: Annotated[str | None, Shown("source")]
    machine: Annotated[str, Shown("machine")]
    device: Annotated[str | None, Shown("device", wraps_em=8)]
    arch: Annotated[str, Shown("model")]
    precision: Annotated[str, Shown("precision")]
    batch_size: Annotated[int | None, Shown("batch")]
    repeats: Annotated[int, Shown("repeats")]
    throughput_images_per_s: Annotated[float | None, Shown("images/s")]
    sd_images_per_s: Annotated[float | None, Shown("SD")]


def imported_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Runs that were measured elsewhere, with what their source says and nothing more."""
    rows = [
        _ImportedRow(
            number=numbers.by_name[run.name],
            run=run.name,
            source=run.imported_from,
            machine=run.env,
            device=run.settings.get("device"),
            arch=run.arch,
            precision=run.precision,
            batch_size=run.batch_size,
            repeats=run.count,
            throughput_images_per_s=run.throughput_images_per_s,
            sd_images_per_s=run.deviations.get("throughput_images_per_s"),
        )
        for run in runs
        if run.imported_from is not None
    ]
    return make_table("imported", "Imported measurements", _ImportedRow, rows)


@dataclass(frozen=True)
class _ComplexityRow:
    arch: Annotated[str, Shown("model")]
    image_size: Annotated[int, Shown("pixels")]
    batch_size: Annotated[int, Shown("batch")]
    precision: Annotated[str, Shown("precision")]
    parameters_million: Annotated[float, Shown("M parameters")]
    activations_million_per_image: Annotated[float, Shown("M activations an image")]
    forward_gmac_per_image: Annotated[float, Shown("forward GMAC an image")]
    step_gflop_per_image: Annotated[float, Shown("step GFLOP an image")]
    compulsory_gb: Annotated[float, Shown("GB a step, compulsory")]
    fused_gb: Annotated[float, Shown("fused")]
    eager_gb: Annotated[float, Shown("eager")]
    weights_gb: Annotated[float, Shown("weights GB")]
    gradients_gb: Annotated[float, Shown("gradients")]
    optimizer_gb: Annotated[float, Shown("optimizer")]
    activations_gb: Annotated[float, Shown("activations")]
    runs: Annotated[RunList, Shown("runs")]


def complexity_table(runs: Sequence[PlacedRun], numbers: RunNumbers) -> Table:
    """Work, traffic and memory of one training step, once per model, batch size and precision."""
    found: dict[tuple[str, int, int, str], tuple[Complexity, list[str]]] = {}
    for run in runs:
        if (one := run.record.complexity) is not None:
            key = (one.arch, one.image_size, one.batch_size, one.precision)
            found.setdefault(key, (one, []))[1].append(run.name)
    rows = [
        _ComplexityRow(
            *key,
            parameters_million=one.parameters / 1e6,
            activations_million_per_image=one.activations / 1e6,
            forward_gmac_per_image=one.forward_macs / one.batch_size / 1e9,
            step_gflop_per_image=one.step_flops_per_image / 1e9,
            compulsory_gb=one.compulsory_bytes / 1e9,
            fused_gb=one.fused_bytes / 1e9,
            eager_gb=one.eager_bytes / 1e9,
            weights_gb=one.memory.weights_bytes / 1e9,
            gradients_gb=one.memory.gradients_bytes / 1e9,
            optimizer_gb=one.memory.optimizer_bytes / 1e9,
            activations_gb=one.memory.activations_bytes / 1e9,
            runs=numbers.listed(names),
        )
        for key, (one, names) in sorted(found.items(), key=lambda item: item[0])
    ]
    title = "Work, traffic and memory of one training step by the cost model"
    return make_table("complexity", title, _ComplexityRow, rows)


def _mean_and_deviation(mean: float, deviation: float | None) -> str:
    return three_digits(mean) + ("" if deviation is None else f" +- {three_digits(deviation)}")


@dataclass(frozen=True)
class _RepeatsRow(Configuration):
    repeats: Annotated[int, Shown("repeats")]
    mean_images_per_s: Annotated[float, Shown("images/s, mean +- SD", _mean_and_deviation)]
    sd_images_per_s: float | None
    low_images_per_s: Annotated[float | None, Shown("95 % interval", interval)]
    high_images_per_s: float | None
    relative_sd: Annotated[float | None, Shown("SD", percent)]
    runs: Annotated[RunList, Shown("runs")]


def repeats_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Images/s of each configuration: mean and deviation of its repeats, and an interval."""
    rows = []
    for group in group_runs(runs):
        repeats = group.repeats()
        mean, deviation = repeats.centre, repeats.relative_deviation
        rows.append(
            _RepeatsRow(
                *configuration(group),
                repeats=repeats.count,
                mean_images_per_s=mean,
                sd_images_per_s=None if deviation is None else deviation * mean,
                low_images_per_s=repeats.interval().low,
                high_images_per_s=repeats.interval().high,
                relative_sd=deviation,
                runs=numbers.listed(group.names),
            )
        )
    return make_table("repeats", "Throughput by configuration, over its repeats", _RepeatsRow, rows)


@dataclass(frozen=True)
class _UpliftRow:
    machine: Annotated[str, Shown("machine")]
    arch: Annotated[str, Shown("model")]
    batch_size: Annotated[int | None, Shown("batch")]
    precision: Annotated[str, Shown("precision")]
    images_per_s: Annotated[float, Shown("images/s")]
    fp32_images_per_s: Annotated[float, Shown("fp32")]
    uplift: Annotated[float, Shown("times as fast")]
    uplift_low: Annotated[float | None, Shown("95 % interval", interval)]
    uplift_high: float | None
    note: Annotated[str | None, Shown("note")]
    runs: Annotated[RunList, Shown("runs")]


def uplift_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Each lower precision against fp32 of the same configuration."""
    rows = [
        _UpliftRow(
            machine=one.low.first.env,
            arch=one.low.first.arch,
            batch_size=one.low.batch_size,
            precision=one.low.first.precision,
            images_per_s=one.low.throughput_images_per_s,
            fp32_images_per_s=one.full.throughput_images_per_s,
            uplift=one.estimate.ratio,
            uplift_low=one.estimate.low,
            uplift_high=one.estimate.high,
            note="memory spilled" if one.spilled else None,
            runs=numbers.listed((*one.low.names, *one.full.names)),
        )
        for one in uplifts(runs)
    ]
    return make_table("uplift", "Lower precision against fp32", _UpliftRow, rows)


@dataclass(frozen=True)
class _ScatterRow:
    machine: Annotated[str, Shown("machine")]
    configurations: Annotated[int, Shown("configurations")]
    degrees: Annotated[int, Shown("degrees of freedom")]
    relative_sd: Annotated[float, Shown("SD between repeats", percent)]
    runs: Annotated[RunList, Shown("runs")]


def scatter_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """The deviation between repeats by machine, pooled over its configurations."""
    rows = [
        _ScatterRow(
            machine=one.label,
            configurations=len(one.groups),
            degrees=one.degrees,
            relative_sd=one.deviation,
            runs=numbers.listed(name for group in one.groups for name in group.names),
        )
        for one in scatters(runs)
    ]
    return make_table("scatter", "Scatter between repeats by machine", _ScatterRow, rows)


@dataclass(frozen=True)
class _ScalingRow:
    configuration: Annotated[str, Shown("configuration", wraps_em=12)]
    devices: Annotated[int, Shown("devices")]
    images_per_s: Annotated[float | None, Shown("images/s")]
    images_per_s_on_one: Annotated[float | None, Shown("on one")]
    scaling_efficiency: Annotated[float, Shown("efficiency", percent)]
    communication_share: Annotated[float | None, Shown("communication", percent)]
    runs: Annotated[RunList, Shown("runs")]


def scaling_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Runs on several devices against the same configuration on one."""
    placed = recorded(runs)
    by_record = {run.record.record_id: run for run in placed}
    rows = []
    for many in placed:
        record = on_one_device(many.record, [other.record for other in placed])
        if record is None or many.outcome != "ok":
            continue
        one, efficiency = by_record[record.record_id], scaling_efficiency(many.record, record)
        if math.isfinite(efficiency):
            rows.append(
                _ScalingRow(
                    configuration=many.label,
                    devices=many.record.config.world_size,
                    images_per_s=many.throughput_images_per_s,
                    images_per_s_on_one=one.throughput_images_per_s,
                    scaling_efficiency=efficiency,
                    communication_share=many.metrics.get("communication_share"),
                    runs=numbers.listed((many.name, one.name)),
                )
            )
    title = "Scaling over devices: images/s over those of as many single devices"
    return make_table("scaling", title, _ScalingRow, rows)
