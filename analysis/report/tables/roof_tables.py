"""The report's tables of roofs: each run's place under its own, its traffic, and the ceilings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from analysis.profiles.profiled_step import NO_COUNTERS, NOT_PROFILED
from analysis.report.tables.run_columns import (
    CONFIGURATION,
    MODELLED,
    NUMBERED,
    bound_words,
    day,
    of_the_roof,
)
from analysis.runs.placed import PlacedRun
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import interval, percent, percent_interval
from analysis.runs.run import Run
from analysis.table import (
    RunNumbers,
    Table,
    make_table,
    number,
    text,
    whole,
)

AnyRun = TypeVar("AnyRun", bound=Run)


def _at(value: Callable[[RooflinePoint], Any]) -> Callable[[AnyRun], Any]:
    """What a run's place has, None where the run has no place."""
    return lambda run: value(run.point) if run.point else None


def points_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Every placed run under its own roof, and what holds it back; of imported runs modelled."""
    return make_table(
        "points",
        "Places under the roof, and what holds each run back",
        (run for run in runs if run.point),
        whole("number run", "no.", lambda run: (numbers.by_name[run.name], run.name)),
        text("label", "configuration", lambda run: run.label, wraps_em=12),
        text("work", "work", lambda run: MODELLED if run.imported_from else None, wraps_em=6),
        number("attained_gflops", "attained GFLOP/s",
               _at(lambda point: point.attained_flops_per_s / 1e9)),
        number("attainable_min_gflop_per_s attainable_max_gflop_per_s", "attainable",
               _at(lambda point: (point.attainable_min_flops_per_s / 1e9,
                                  point.attainable_max_flops_per_s / 1e9)), interval),
        number("ridge_flop_per_byte", "ridge FLOP/byte",
               _at(lambda point: point.roof.ridge_flop_per_byte)),
        number("fraction_of_roof_min fraction_of_roof_max", "of the roof", _at(of_the_roof),
               percent_interval),
        number("fraction_of_peak", "of the peak", _at(lambda point: point.fraction_of_peak),
               percent),
        text("bound", "bound", _at(bound_words)),
        text("because", "because", _at(lambda point: point.bound_because), wraps_em=20),
        # The table of ceilings has each source once; here it would take most of the page.
        text("ceiling_kind ceiling_date ceiling_source", "roof",
             _at(lambda point: (point.ceiling.kind, point.ceiling.date, point.ceiling.source)),
             lambda kind, moment, _: f"{kind} {day(moment)}"),
        sparse=True,
    )  # fmt: skip


def intensities_table(runs: Sequence[PlacedRun]) -> Table:
    """FLOP per byte by the model's two counts and by counters, of runs that counters looked at.

    Of the others the tables of the summary and of complexity have what there is.
    """

    def gigabytes(point: RooflinePoint, intensity: float | None) -> float | None:
        return point.step_flops / intensity / 1e9 if intensity else None

    return make_table(
        "intensities",
        "Arithmetic intensity by fused, eager and counted bytes, per step",
        (run for run in runs if run.point and _was_counted(run.point)),
        NUMBERED,
        CONFIGURATION,
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
        sparse=True,
    )  # fmt: skip


def _was_counted(point: RooflinePoint) -> bool:
    """Whether counters looked at the run, even if their bytes cannot be used."""
    reason = point.intensity_counted_missing
    return not reason.startswith((NOT_PROFILED, NO_COUNTERS))


def ceilings_table(runs: Sequence[Run], run_ids: Mapping[str, str]) -> Table:
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
        text("date", "date", lambda point: point.ceiling.date, day),
        text("run", "run", run_id),
    )
