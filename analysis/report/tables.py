"""The report's tables, from results; runs are numbered, and table 1 says which is which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from analysis.report.table import Column, Table, make_table
from analysis.runs.placed import PlacedRun
from analysis.runs.quantities import interval, percent_interval, three_digits
from bench.records import Ceiling


@dataclass(frozen=True)
class ReportedCeiling:
    """A ceiling that runs of the report stand under, and the run that measured it."""

    ceiling: Ceiling
    run: str | None
    peak_flops_per_s: float
    peak_bytes_per_s: float


def utc(moment: datetime) -> str:
    """Format a time to the minute."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_WHAT = (
    Column("machine", ("machine",), lambda r: r.env),
    Column("model", ("arch",), lambda r: r.record.config.arch),
    Column("precision", ("precision",), lambda r: r.record.config.precision),
    Column("batch", ("batch_size",), lambda r: r.settings["batch_size"], numeric=True),
)

_RUNS = (
    Column("no.", ("number",), lambda r: r.number, numeric=True),
    Column("run", ("run",), lambda r: r.name),
    *_WHAT,
    Column(
        "arithmetic",
        ("math_mode",),
        lambda r: r.record.resolved.math_mode if r.record.resolved else None,
    ),
    Column("data", ("data",), lambda r: r.record.config.data, wraps_em=7),
    Column("warm-up", ("warmup_iterations",), lambda r: r.record.config.warmup_iters, numeric=True),
    Column("iterations", ("iterations",), lambda r: r.iterations, numeric=True),
    Column("repeat", ("repeat",), lambda r: r.record.config.repeat, numeric=True),
    Column("measured", ("measured",), lambda r: r.record.created, utc),
    Column("outcome", ("outcome",), lambda r: r.record.outcome),
)

#: The run's number, for a table that is not about runs alone.
RUN_NUMBER = Column(
    "no.", ("number", "run"), lambda r: (r.number, r.name), lambda v: str(v[0]), True
)


def _metric(heading: str, key: str, metric: str) -> Column:
    return Column(heading, (key,), lambda r: r.metrics.get(metric), three_digits, numeric=True)


def _intensities(result: PlacedRun) -> tuple[float, float] | None:
    metrics = result.metrics
    if "intensity_min" not in metrics:
        return None
    return metrics["intensity_min"], metrics["intensity_max"]


def _fractions(result: PlacedRun) -> tuple[float, float] | None:
    point = result.point
    return (point.fraction_of_roof_min, point.fraction_of_roof_max) if point else None


def bound_word(result: PlacedRun) -> str | None:
    """Return the bound, with a question mark where the traffic's interval leaves it open."""
    point = result.point
    return None if point is None else point.bound + ("" if point.bound_sure else "?")


_MEASUREMENTS = (
    RUN_NUMBER,
    *_WHAT,
    _metric("images/s", "throughput_images_per_s", "throughput_images_per_s"),
    _metric("ms p50", "iteration_time_p50_ms", "iteration_time_ms_p50"),
    _metric("ms p95", "iteration_time_p95_ms", "iteration_time_ms_p95"),
    Column("data wait", ("data_wait_share",), lambda r: r.metrics.get("data_wait_share"),
           _percent, numeric=True),
    _metric("GFLOP/s", "attained_gflop_per_s", "attained_gflops"),
    Column("FLOP/byte", ("intensity_min_flop_per_byte", "intensity_max_flop_per_byte"),
           _intensities, lambda ends: interval(*ends), numeric=True),
    Column("of the roof", ("fraction_of_roof_min", "fraction_of_roof_max"),
           _fractions, lambda ends: percent_interval(*ends), numeric=True),
    Column("bound", ("bound",), bound_word),
    Column("verdict", ("verdict",), lambda r: r.verdict),
)  # fmt: skip

_BOUNDS = (
    RUN_NUMBER,
    Column("configuration", ("label",), lambda r: r.label, wraps_em=14),
    Column("bound", ("bound",), bound_word),
    Column("because", ("because",), lambda r: r.point.bound_because, wraps_em=24),
)

_CEILINGS = (
    Column("device", ("device",), lambda c: c.ceiling.device, wraps_em=8),
    Column("arithmetic", ("math_mode",), lambda c: c.ceiling.math_mode),
    Column("GFLOP/s", ("peak_gflop_per_s",), lambda c: c.peak_flops_per_s / 1e9,
           three_digits, numeric=True),
    Column("GB/s", ("peak_gb_per_s",), lambda c: c.peak_bytes_per_s / 1e9,
           three_digits, numeric=True),
    Column("ridge FLOP/byte", ("ridge_flop_per_byte",),
           lambda c: c.peak_flops_per_s / c.peak_bytes_per_s, three_digits, numeric=True),
    Column("kind", ("kind",), lambda c: c.ceiling.kind),
    Column("source", ("source",), lambda c: c.ceiling.source, wraps_em=24),
    Column("date", ("date",), lambda c: c.ceiling.date, lambda date: date[:10]),
    Column("run", ("run",), lambda c: c.run),
)  # fmt: skip


def runs_table(number: int, results: Sequence[PlacedRun]) -> Table:
    """What was measured: one row per run, failed ones too."""
    return make_table(number, "runs", "What was measured", _RUNS, results)


def measurements_table(number: int, results: Sequence[PlacedRun]) -> Table:
    """Throughput, times and the place under the roof of every run that has a measurement."""
    measured = [result for result in results if result.record.outcome == "ok"]
    return make_table(number, "measurements", "Measurements", _MEASUREMENTS, measured)


def bounds_table(number: int, results: Sequence[PlacedRun]) -> Table:
    """What holds each placed run back, with the numbers that say so."""
    placed = [result for result in results if result.point]
    return make_table(number, "bounds", "What holds each run back", _BOUNDS, placed)


def ceilings_table(number: int, used: Sequence[ReportedCeiling]) -> Table:
    """The roofs that the runs stand under, once each."""
    return make_table(number, "ceilings", "Ceilings", _CEILINGS, used)
