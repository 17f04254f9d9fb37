"""The report's tables of recorded runs, one row each, of their roofs and their machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from analysis.report.tables.numbered_table import Column, Shown, Table, make_table
from analysis.runs.placed import PlacedRun
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import interval, percent, percent_interval, three_digits
from bench.records import Environment


def utc(moment: datetime) -> str:
    """Format a time to the minute."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _tenths_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _day(moment: str, *_: object) -> str:
    return moment[:10]


@dataclass(frozen=True)
class _Numbered:
    number: Annotated[int, Shown("no.")]
    run: str


@dataclass(frozen=True)
class _RunRow:
    number: Annotated[int, Shown("no.")]
    run: Annotated[str, Shown("run")]
    machine: Annotated[str, Shown("machine")]
    arch: Annotated[str, Shown("model")]
    precision: Annotated[str, Shown("precision")]
    batch_size: Annotated[str, Shown("batch", numeric=True)]
    math_mode: Annotated[str | None, Shown("arithmetic")]
    data: Annotated[str, Shown("data", wraps_em=7)]
    warmup_iterations: Annotated[int, Shown("warm-up")]
    iterations: Annotated[int | None, Shown("iterations")]
    repeat: Annotated[int, Shown("repeat")]
    measured: Annotated[datetime, Shown("measured", utc)]
    outcome: Annotated[str, Shown("outcome")]


def runs_table(runs: Sequence[PlacedRun]) -> Table:
    """What was measured: one row per run, failed ones too."""
    rows = [
        _RunRow(
            number=run.number,
            run=run.name,
            machine=run.env,
            arch=run.arch,
            precision=run.precision,
            batch_size=run.settings["batch_size"],
            math_mode=run.record.resolved.math_mode if run.record.resolved else None,
            data=run.record.config.data,
            warmup_iterations=run.record.config.warmup_iters,
            iterations=run.iterations,
            repeat=run.record.config.repeat,
            measured=run.record.created,
            outcome=run.outcome,
        )
        for run in runs
    ]
    return make_table("runs", "What was measured", _RunRow, rows)


@dataclass(frozen=True)
class _MeasurementRow(_Numbered):
    machine: Annotated[str, Shown("machine")]
    arch: Annotated[str, Shown("model")]
    precision: Annotated[str, Shown("precision")]
    batch_size: Annotated[str, Shown("batch", numeric=True)]
    throughput_images_per_s: Annotated[float | None, Shown("images/s")]
    iteration_time_ms_p50: Annotated[float | None, Shown("ms p50")]
    iteration_time_ms_p95: Annotated[float | None, Shown("ms p95")]
    data_wait_share: Annotated[float | None, Shown("data wait", _tenths_percent)]
    attained_gflops: Annotated[float | None, Shown("GFLOP/s")]
    intensity_min: Annotated[float | None, Shown("FLOP/byte", interval)]
    intensity_max: float | None
    fraction_of_roof_min: Annotated[float | None, Shown("of the roof", percent_interval)]
    fraction_of_roof_max: float | None
    bound: Annotated[str | None, Shown("bound")]
    verdict: Annotated[str, Shown("verdict")]


def measurements_table(runs: Sequence[PlacedRun]) -> Table:
    """Throughput, times and the place under the roof of every run that has a measurement."""
    rows = [
        _MeasurementRow(
            number=run.number,
            run=run.name,
            machine=run.env,
            arch=run.arch,
            precision=run.precision,
            batch_size=run.settings["batch_size"],
            throughput_images_per_s=run.metrics.get("throughput_images_per_s"),
            iteration_time_ms_p50=run.metrics.get("iteration_time_ms_p50"),
            iteration_time_ms_p95=run.metrics.get("iteration_time_ms_p95"),
            data_wait_share=run.metrics.get("data_wait_share"),
            attained_gflops=run.metrics.get("attained_gflops"),
            intensity_min=run.metrics.get("intensity_min"),
            intensity_max=run.metrics.get("intensity_max"),
            fraction_of_roof_min=run.point.fraction_of_roof_min if run.point else None,
            fraction_of_roof_max=run.point.fraction_of_roof_max if run.point else None,
            bound=_bound(run.point) if run.point else None,
            verdict=run.verdict,
        )
        for run in runs
        if run.outcome == "ok"
    ]
    return make_table("measurements", "Measurements", _MeasurementRow, rows)


def _bound(point: RooflinePoint) -> str:
    """The bound, with a question mark where the traffic's interval leaves it open."""
    return point.bound + ("" if point.bound_sure else "?")


@dataclass(frozen=True)
class _PointRow(_Numbered):
    label: Annotated[str, Shown("configuration", wraps_em=12)]
    math_mode: Annotated[str, Shown("arithmetic")]
    attained_gflops: Annotated[float, Shown("attained GFLOP/s")]
    attainable_min_gflop_per_s: Annotated[float, Shown("attainable", interval)]
    attainable_max_gflop_per_s: float
    ridge_flop_per_byte: Annotated[float, Shown("ridge FLOP/byte")]
    fraction_of_roof_min: Annotated[float, Shown("of the roof", percent_interval)]
    fraction_of_roof_max: float
    fraction_of_peak: Annotated[float, Shown("of the peak", percent)]
    bound: Annotated[str, Shown("bound")]
    ceiling_kind: Annotated[str, Shown("roof")]
    # The table of ceilings has each source once; here it would take most of the page.
    ceiling_date: Annotated[str, Shown("of", _day)]
    ceiling_source: str


def points_table(runs: Sequence[PlacedRun]) -> Table:
    """Every placed run under its own roof."""
    rows = [
        _PointRow(
            number=run.number,
            run=run.name,
            label=run.label,
            math_mode=point.math_mode,
            attained_gflops=point.attained_flops_per_s / 1e9,
            attainable_min_gflop_per_s=point.attainable_min_flops_per_s / 1e9,
            attainable_max_gflop_per_s=point.attainable_max_flops_per_s / 1e9,
            ridge_flop_per_byte=point.ridge_flop_per_byte,
            fraction_of_roof_min=point.fraction_of_roof_min,
            fraction_of_roof_max=point.fraction_of_roof_max,
            fraction_of_peak=point.fraction_of_peak,
            bound=_bound(point),
            ceiling_kind=point.ceiling.kind,
            ceiling_date=point.ceiling.date,
            ceiling_source=point.ceiling.source,
        )
        for run in runs
        if (point := run.point)
    ]
    return make_table("points", "Places under the roof", _PointRow, rows)


@dataclass(frozen=True)
class _BoundRow(_Numbered):
    label: Annotated[str, Shown("configuration", wraps_em=14)]
    bound: Annotated[str, Shown("bound")]
    because: Annotated[str, Shown("because", wraps_em=24)]


def bounds_table(runs: Sequence[PlacedRun]) -> Table:
    """What holds each placed run back, with the numbers that say so."""
    rows = [
        _BoundRow(run.number, run.name, run.label, _bound(run.point), run.point.bound_because)
        for run in runs
        if run.point
    ]
    return make_table("bounds", "What holds each run back", _BoundRow, rows)


@dataclass(frozen=True)
class _IntensityRow(_Numbered):
    label: Annotated[str, Shown("configuration", wraps_em=12)]
    intensity_fused_flop_per_byte: Annotated[float, Shown("FLOP/byte, fused")]
    intensity_eager_flop_per_byte: Annotated[float, Shown("eager")]
    intensity_counted: Annotated[float | None, Shown("counted")]
    step_fused_gb: Annotated[float, Shown("GB, fused")]
    step_eager_gb: Annotated[float, Shown("eager")]
    counted_dram_gb: Annotated[float | None, Shown("counted")]
    traffic_amplification: Annotated[float | None, Shown("counted / fused")]
    executed_per_algorithmic_flop: Annotated[float | None, Shown("executed / algorithmic FLOP")]
    not_counted_because: Annotated[str | None, Shown("not counted because", wraps_em=16)]


def intensities_table(runs: Sequence[PlacedRun]) -> Table:
    """FLOP per byte of every placed run by the model's two counts and by counters."""
    rows = [
        _IntensityRow(
            number=run.number,
            run=run.name,
            label=run.label,
            intensity_fused_flop_per_byte=point.intensity_max,
            intensity_eager_flop_per_byte=point.intensity_min,
            intensity_counted=counted,
            step_fused_gb=point.step_flops / point.intensity_max / 1e9,
            step_eager_gb=point.step_flops / point.intensity_min / 1e9,
            counted_dram_gb=point.step_flops / counted / 1e9 if counted else None,
            traffic_amplification=point.traffic_amplification,
            executed_per_algorithmic_flop=point.executed_per_algorithmic,
            not_counted_because=point.intensity_counted_missing or None,
        )
        for run in runs
        if (point := run.point)
        for counted in (point.intensity_counted,)
    ]
    title = "Arithmetic intensity by fused, eager and counted bytes, per step"
    return make_table("intensities", title, _IntensityRow, rows)


@dataclass(frozen=True)
class _CeilingRow:
    device: Annotated[str, Shown("device", wraps_em=8)]
    math_mode: Annotated[str, Shown("arithmetic")]
    peak_gflop_per_s: Annotated[float, Shown("GFLOP/s")]
    peak_gb_per_s: Annotated[float, Shown("GB/s")]
    ridge_flop_per_byte: Annotated[float, Shown("ridge FLOP/byte")]
    kind: Annotated[str, Shown("kind")]
    source: Annotated[str, Shown("source", wraps_em=24)]
    date: Annotated[str, Shown("date", _day)]
    run: Annotated[str | None, Shown("run")]


def ceilings_table(runs: Sequence[PlacedRun], run_ids: Mapping[str, str]) -> Table:
    """The roofs that the runs stand under, once each; `run_ids` maps records to tracked runs."""
    rows: dict[tuple[str, ...], _CeilingRow] = {}
    for point in (run.point for run in runs if run.point):
        record_id, ceiling, roof = point.ceiling_record_id, point.ceiling, point.roof
        run_id = None if record_id is None else run_ids.get(record_id, record_id)
        rows[point.device, point.math_mode, run_id or "", ceiling.source] = _CeilingRow(
            device=ceiling.device,
            math_mode=ceiling.math_mode,
            peak_gflop_per_s=roof.peak_flops_per_s / 1e9,
            peak_gb_per_s=roof.peak_bytes_per_s / 1e9,
            ridge_flop_per_byte=roof.peak_flops_per_s / roof.peak_bytes_per_s,
            kind=ceiling.kind,
            source=ceiling.source,
            date=ceiling.date,
            run=run_id,
        )
    return make_table("ceilings", "Ceilings", _CeilingRow, [rows[key] for key in sorted(rows)])


def environments_table(runs: Sequence[PlacedRun]) -> Table:
    """Facts in rows, environments in columns; a fact that no machine has is left out.

    Environments that differ in a fact are columns of their own, numbered if they share a label.
    """
    found = {
        (run.record.environment.label, tuple(_facts(run.record.environment).values())): _facts(
            run.record.environment
        )
        for run in runs
        if run.record.environment
    }
    labels = [label for label, _ in found]
    headings = [
        label if labels.count(label) == 1 else f"{label} ({labels[: index + 1].count(label)})"
        for index, label in enumerate(labels)
    ]
    columns = [Column(heading, (heading,), wraps_em=12) for heading in headings]
    names = dict.fromkeys(name for facts in found.values() for name in facts)
    rows = tuple(
        ((name,), *((facts[name],) for facts in found.values()))
        for name in names
        if any(facts[name] is not None for facts in found.values())
    )
    return Table("environments", "Environments", (Column("", ("fact",)), *columns), rows)


def _facts(env: Environment) -> dict[str, object]:
    device, commit = env.device, env.git_commit
    changed = " (changed)" if env.git_dirty else ""
    return {
        "device": device.name,
        "backend": device.backend,
        "device UUID": device.uuid,
        "device cores": device.cores,
        "device memory (GB)": _digits(device.memory_bytes, 1e9),
        "last-level cache (MB)": _digits(device.last_level_cache_bytes, 1e6),
        "compute capability": device.compute_capability,
        "driver": device.driver,
        "power limit (W)": _digits(device.power_limit_w),
        "operating system": f"{env.os}, kernel {env.kernel}, {env.machine}",
        "processor": env.cpu_model,
        "processor's numbers": env.cpu_signature,
        "processor cores usable": env.cpu_cores_usable,
        "memory (GB)": _digits(env.memory_bytes, 1e9),
        "Python": env.python,
        "PyTorch": env.torch,
        "torchvision": env.torchvision,
        "CUDA": env.cuda,
        "cuDNN": env.cudnn,
        "variables": env.variables_set,
        "container": env.container,
        "virtualisation": env.virtualization,
        "cloud": env.cloud_provider,
        "machine type": env.cloud_machine_type,
        "zone": env.cloud_zone,
        "power": env.power_source,
        "commit": None if commit is None else commit[:12] + changed,
    }


def _digits(value: float | None, unit: float = 1.0) -> str | None:
    return None if value is None else three_digits(value / unit)
