"""The report's tables over batch size: what larger batches gained, and the fitted models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from analysis.findings.batches import (
    before_cliff,
    cliff_of,
    gain_per_doubling,
    knee_of,
    percent_change,
)
from analysis.prediction import PredictedCurve, fit_curve, measured_batches
from analysis.prediction.curve import FEWEST_SIZES, least_image_s
from analysis.report.tables.group_tables import Configuration, configuration
from analysis.report.tables.numbered_table import RunList, RunNumbers, Shown, Table, make_table
from analysis.runs.groups import Group, batch_curves
from analysis.runs.placed import Run
from analysis.runs.quantities import percent


@dataclass(frozen=True)
class _GainRow(Configuration):
    images_per_s: Annotated[float, Shown("images/s")]
    ratio_to_smallest: Annotated[float, Shown("of the smallest batch's")]
    gain_per_doubling: Annotated[float | None, Shown("a doubling gave", percent_change)]
    note: Annotated[str | None, Shown("note")]
    runs: Annotated[RunList, Shown("runs")]


def gains_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Each batch size of a curve against the one before it, and the knee."""
    curves = [curve for curve in batch_curves(runs) if len(curve) > 1]
    rows = [row for curve in curves for row in _gains(curve, numbers)]
    return make_table("batch-gains", "Gains of larger batches, and the knee", _GainRow, rows)


def _gains(curve: Sequence[Group], numbers: RunNumbers) -> Iterator[_GainRow]:
    knee, cliff = knee_of(curve), cliff_of(curve)
    steps = [None, *(gain_per_doubling(small, large) for small, large in pairwise(curve))]
    for place, (group, gain) in enumerate(zip(curve, steps, strict=True)):
        note = "knee" if knee is not None and knee.knee is group else None
        if cliff is not None and place >= cliff:
            note = "memory spilled"
        rate = group.throughput_images_per_s
        yield _GainRow(
            *configuration(group),
            images_per_s=rate,
            ratio_to_smallest=rate / curve[0].throughput_images_per_s,
            gain_per_doubling=gain,
            note=note,
            runs=numbers.listed(group.names),
        )


def predicted_curves(runs: Sequence[Run]) -> list[tuple[Group, PredictedCurve]]:
    """Return the model of every curve with three batch sizes or more before any spill."""
    return [
        (curve[0], fit_curve(measured_batches(curve), least_image_s(before_cliff(curve))))
        for curve in batch_curves(runs)
        if len(before_cliff(curve)) >= FEWEST_SIZES
    ]


@dataclass(frozen=True)
class _PredictionRow:
    machine: Annotated[str, Shown("machine")]
    arch: Annotated[str, Shown("model")]
    precision: Annotated[str, Shown("precision")]
    fixed_ms: Annotated[float, Shown("ms a step")]
    per_image_ms: Annotated[float, Shown("ms an image")]
    limit_images_per_s: Annotated[float | None, Shown("images/s at most")]
    measured_batches: Annotated[str, Shown("measured batches")]
    held_out_error: Annotated[float, Shown("held-out error", percent)]
    worst_held_out: Annotated[float, Shown("worst", percent)]
    runs: Annotated[RunList, Shown("runs")]


def predictions_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """The two terms of each predicted curve, and what it misses batch sizes by."""
    rows = [
        _PredictionRow(
            machine=group.first.env,
            arch=group.first.arch,
            precision=group.first.precision,
            fixed_ms=1e3 * curve.model.fixed_s,
            per_image_ms=1e3 * curve.model.per_image_s,
            limit_images_per_s=1 / curve.model.per_image_s if curve.model.per_image_s > 0 else None,
            measured_batches=", ".join(str(one.batch_size) for one in curve.measured),
            held_out_error=curve.held_out_error,
            worst_held_out=max(abs(error) for _, error in curve.held_out),
            runs=numbers.listed(name for one in curve.measured for name in one.runs),
        )
        for group, curve in predicted_curves(runs)
    ]
    title = "Time of a step as a fixed cost and a cost an image"
    return make_table("predictions", title, _PredictionRow, rows)
