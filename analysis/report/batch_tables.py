"""The report's tables over batch size: what larger batches gained, and the fitted models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from analysis.findings.batch_knee import gain_per_doubling, knee_of, percent_change
from analysis.findings.memory_spill import before_cliff, cliff_of
from analysis.prediction import PredictedCurve, fit_curve, measured_batches
from analysis.prediction.curve import FEWEST_SIZES, least_image_s
from analysis.report.group_tables import OF_GROUP, runs_column
from analysis.report.run_numbers import RunNumbers
from analysis.report.table import Column, Table, make_table, quantity, share_of
from analysis.runs.groups import Group, batch_curves
from analysis.runs.placed import Run
from analysis.runs.quantities import percent


@dataclass(frozen=True)
class _Gain:
    group: Group
    of_smallest: float
    per_doubling: float | None
    note: str | None


def gains_table(number: int, runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Each batch size of a curve against the one before it, and the knee."""
    rows = [row for curve in batch_curves(runs) if len(curve) > 1 for row in _gains(curve)]
    columns = (
        *(
            Column(c.heading, c.keys, _of_group(c), c.show, c.numeric)
            for c in OF_GROUP
        ),
        quantity("images/s", "images_per_s", lambda g: g.group.throughput_images_per_s),
        quantity("of the smallest batch's", "ratio_to_smallest", lambda g: g.of_smallest),
        Column("a doubling gave", ("gain_per_doubling",), lambda g: g.per_doubling,
               percent_change, numeric=True),
        Column("note", ("note",), lambda g: g.note),
        runs_column(numbers, lambda g: g.group.names),
    )  # fmt: skip
    return make_table(number, "batch-gains", "Gains of larger batches, and the knee", columns, rows)


def _of_group(column: Column) -> Callable[[_Gain], Any]:
    return lambda gain: column.read(gain.group)


def _gains(curve: Sequence[Group]) -> list[_Gain]:
    knee, cliff = knee_of(curve), cliff_of(curve)
    steps = [None, *(gain_per_doubling(small, large) for small, large in pairwise(curve))]
    rows = []
    for place, (group, gain) in enumerate(zip(curve, steps, strict=True)):
        note = "knee" if knee is not None and knee.knee is group else None
        if cliff is not None and place >= cliff:
            note = "memory spilled"
        ratio = group.throughput_images_per_s / curve[0].throughput_images_per_s
        rows.append(_Gain(group, ratio, gain, note))
    return rows


def predicted_curves(runs: Sequence[Run]) -> list[tuple[Group, PredictedCurve]]:
    """Return the model of every curve with three batch sizes or more before any spill."""
    return [
        (curve[0], fit_curve(measured_batches(curve), least_image_s(before_cliff(curve))))
        for curve in batch_curves(runs)
        if len(before_cliff(curve)) >= FEWEST_SIZES
    ]


def predictions_table(number: int, runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """The two terms of each predicted curve, and what it misses batch sizes by."""
    columns = (
        Column("machine", ("machine",), lambda p: p[0].first.env),
        Column("model", ("arch",), lambda p: p[0].first.arch),
        Column("precision", ("precision",), lambda p: p[0].first.precision),
        quantity("ms a step", "fixed_ms", lambda p: 1e3 * p[1].model.fixed_s),
        quantity("ms an image", "per_image_ms", lambda p: 1e3 * p[1].model.per_image_s),
        quantity("images/s at most", "limit_images_per_s", _limit),
        Column("measured batches", ("measured_batches",),
               lambda p: ", ".join(str(one.batch_size) for one in p[1].measured)),
        share_of("held-out error", "held_out_error", lambda p: p[1].held_out_error),
        Column("worst", ("worst_held_out",),
               lambda p: max(abs(error) for _, error in p[1].held_out), percent, numeric=True),
        runs_column(numbers, lambda p: [name for one in p[1].measured for name in one.runs]),
    )  # fmt: skip
    title = "Time of a step as a fixed cost and a cost an image"
    return make_table(number, "predictions", title, columns, predicted_curves(runs))


def _limit(pair: tuple[Group, PredictedCurve]) -> float | None:
    per_image_s = pair[1].model.per_image_s
    return 1 / per_image_s if per_image_s > 0 else None
