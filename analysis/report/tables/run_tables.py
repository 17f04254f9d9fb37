"""The report's tables of runs, one row each, of their roofs and their machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

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
from analysis.runs.placed import THROUGHPUT, PlacedRun, Run
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import interval, percent, percent_interval, three_digits
from bench.records import Environment

_NUMBERED: Column[PlacedRun] = whole("number run", "no.", lambda run: (run.number, run.name))
_OF_RUN: list[Column[PlacedRun]] = of_run(lambda run: run)
_BATCH: Column[PlacedRun] = whole("batch_size", "batch", lambda run: run.settings["batch_size"])


def utc(moment: datetime) -> str:
    """Format a time to the minute."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def runs_table(runs: Sequence[PlacedRun]) -> Table:
    """What was measured: one row per run, failed ones too."""
    return make_table(
        "runs",
        "What was measured",
        runs,
        whole("number", "no.", lambda run: run.number),
        text("run", "run", lambda run: run.name),
        *_OF_RUN,
        _BATCH,
        text("math_mode", "arithmetic", _math_mode),
        text("data", "data", lambda run: run.record.config.data, wraps_em=7),
        whole("warmup_iterations", "warm-up", lambda run: run.record.config.warmup_iters),
        whole("iterations", "iterations", lambda run: len(run.iteration_times_s) or None),
        whole("repeat", "repeat", lambda run: run.record.config.repeat),
        text("measured", "measured", lambda run: run.record.created, utc),
        text("outcome", "outcome", lambda run: run.outcome),
    )


def _math_mode(run: PlacedRun) -> str | None:
    return run.record.resolved.math_mode if run.record.resolved else None


def _metric(name: str, heading: str) -> Column[PlacedRun]:
    return number(name, heading, lambda run: run.metrics.get(name))


def measurements_table(runs: Sequence[PlacedRun]) -> Table:
    """Throughput, times and the place under the roof of every run that has a measurement."""
    return make_table(
        "measurements",
        "Measurements",
        (run for run in runs if run.outcome == "ok"),
        _NUMBERED,
        *_OF_RUN,
        _BATCH,
        _metric("throughput_images_per_s", "images/s"),
        _metric("iteration_time_ms_p50", "ms p50"),
        _metric("iteration_time_ms_p95", "ms p95"),
        number("data_wait_share", "data wait", lambda run: run.metrics.get("data_wait_share"),
               lambda share: f"{100 * share:.1f} %"),
        _metric("attained_gflops", "GFLOP/s"),
        number("intensity_min intensity_max", "FLOP/byte",
               lambda run: [run.metrics.get(f"intensity_{end}") for end in ("min", "max")],
               interval),
        number("fraction_of_roof_min fraction_of_roof_max", "of the roof",
               lambda run: _of_the_roof(run.point) if run.point else (None, None),
               percent_interval),
        text("bound", "bound", _at(_bound)),
        text("verdict", "verdict", lambda run: run.verdict),
    )  # fmt: skip


def _of_the_roof(point: RooflinePoint) -> tuple[float, float]:
    return point.fraction_of_roof_min, point.fraction_of_roof_max


def _bound(point: RooflinePoint) -> str:
    """The bound, with a question mark where the traffic's interval leaves it open."""
    return point.bound + ("" if point.bound_sure else "?")


def _at(value: Callable[[RooflinePoint], Any]) -> Callable[[PlacedRun], Any]:
    """What a run's place has, None where the run has no place."""
    return lambda run: value(run.point) if run.point else None


def points_table(runs: Sequence[PlacedRun]) -> Table:
    """Every placed run under its own roof."""
    return make_table(
        "points",
        "Places under the roof",
        (run for run in runs if run.point),
        _NUMBERED,
        text("label", "configuration", lambda run: run.label, wraps_em=12),
        text("math_mode", "arithmetic", _at(lambda point: point.math_mode)),
        number("attained_gflops", "attained GFLOP/s",
               _at(lambda point: point.attained_flops_per_s / 1e9)),
        number("attainable_min_gflop_per_s attainable_max_gflop_per_s", "attainable",
               _at(lambda point: (point.attainable_min_flops_per_s / 1e9,
                                  point.attainable_max_flops_per_s / 1e9)), interval),
        number("ridge_flop_per_byte", "ridge FLOP/byte",
               _at(lambda point: point.roof.ridge_flop_per_byte)),
        number("fraction_of_roof_min fraction_of_roof_max", "of the roof", _at(_of_the_roof),
               percent_interval),
        number("fraction_of_peak", "of the peak", _at(lambda point: point.fraction_of_peak),
               percent),
        text("bound", "bound", _at(_bound)),
        text("ceiling_kind", "roof", _at(lambda point: point.ceiling.kind)),
        # The table of ceilings has each source once; here it would take most of the page.
        text("ceiling_date ceiling_source", "of",
             _at(lambda point: (point.ceiling.date, point.ceiling.source)), _day),
    )  # fmt: skip


def _day(moment: str, *_: object) -> str:
    return moment[:10]


def bounds_table(runs: Sequence[PlacedRun]) -> Table:
    """What holds each placed run back, with the numbers that say so."""
    return make_table(
        "bounds",
        "What holds each run back",
        (run for run in runs if run.point),
        _NUMBERED,
        text("label", "configuration", lambda run: run.label, wraps_em=14),
        text("bound", "bound", _at(_bound)),
        text("because", "because", _at(lambda point: point.bound_because), wraps_em=24),
    )


def intensities_table(runs: Sequence[PlacedRun]) -> Table:
    """FLOP per byte of every placed run by the model's two counts and by counters."""

    def gigabytes(point: RooflinePoint, intensity: float | None) -> float | None:
        return point.step_flops / intensity / 1e9 if intensity else None

    return make_table(
        "intensities",
        "Arithmetic intensity by fused, eager and counted bytes, per step",
        (run for run in runs if run.point),
        _NUMBERED,
        text("label", "configuration", lambda run: run.label, wraps_em=12),
        number("intensity_fused_flop_per_byte", "FLOP/byte, fused",
               _at(lambda point: point.intensity_max)),
        number("intensity_eager_flop_per_byte", "eager", _at(lambda point: point.intensity_min)),
        number("intensity_counted", "counted", _at(lambda point: point.intensity_counted)),
        number("step_fused_gb", "GB, fused",
               _at(lambda point: gigabytes(point, point.intensity_max))),
        number("step_eager_gb", "eager", _at(lambda point: gigabytes(point, point.intensity_min))),
        number("counted_dram_gb", "counted",
               _at(lambda point: gigabytes(point, point.intensity_counted))),
        number("traffic_amplification", "counted / fused",
               _at(lambda point: point.traffic_amplification)),
        number("executed_per_algorithmic_flop", "executed / algorithmic FLOP",
               _at(lambda point: point.executed_per_algorithmic)),
        text("not_counted_because", "not counted because",
             _at(lambda point: point.intensity_counted_missing or None), wraps_em=16),
    )  # fmt: skip


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


def ceilings_table(runs: Sequence[PlacedRun], run_ids: Mapping[str, str]) -> Table:
    """The roofs that the runs stand under, once each; `run_ids` maps records to tracked runs."""

    def run_id(point: RooflinePoint) -> str | None:
        return run_ids.get(point.ceiling_record_id or "", point.ceiling_record_id)

    points = (run.point for run in runs if run.point)
    once = {
        (point.device, point.math_mode, run_id(point) or "", point.ceiling.source): point
        for point in points
    }
    return make_table(
        "ceilings",
        "Ceilings",
        [once[key] for key in sorted(once)],
        text("device", "device", lambda point: point.ceiling.device, wraps_em=8),
        text("math_mode", "arithmetic", lambda point: point.ceiling.math_mode),
        number("peak_gflop_per_s", "GFLOP/s", lambda point: point.roof.peak_flops_per_s / 1e9),
        number("peak_gb_per_s", "GB/s", lambda point: point.roof.peak_bytes_per_s / 1e9),
        number(
            "ridge_flop_per_byte", "ridge FLOP/byte", lambda point: point.roof.ridge_flop_per_byte
        ),
        text("kind", "kind", lambda point: point.ceiling.kind),
        text("source", "source", lambda point: point.ceiling.source, wraps_em=24),
        text("date", "date", lambda point: point.ceiling.date, _day),
        text("run", "run", run_id),
    )


def environments_table(runs: Sequence[PlacedRun]) -> Table:
    """Facts in rows, environments in columns; a fact that no machine has is left out.

    Environments that differ in a fact are columns of their own, numbered if they share a label.
    """
    known = [run.record.environment for run in runs if run.record.environment]
    found = {(one.label, tuple(_facts(one).values())): _facts(one) for one in known}
    labels = [label for label, _ in found]
    headings = [
        label if labels.count(label) == 1 else f"{label} ({labels[: index + 1].count(label)})"
        for index, label in enumerate(labels)
    ]
    fact: Column[str] = text("fact", "", str)
    columns: list[Column[str]] = [
        Column(heading, (heading,), facts.get, wraps_em=12)
        for heading, facts in zip(headings, found.values(), strict=True)
    ]
    names = [
        name
        for name in dict.fromkeys(name for facts in found.values() for name in facts)
        if any(facts[name] is not None for facts in found.values())
    ]
    return make_table("environments", "Environments", names, fact, *columns)


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
