"""The report's tables over batch sizes: gains, the knee, and the model of a step's time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from analysis.findings.batches import (
    gain_per_doubling,
    knee_of,
    percent_change,
    steps_of,
)
from analysis.prediction import PredictedCurve, fit_curve, measured_batches
from analysis.prediction.curve import FEWEST_SIZES, StepModel, least_sample_s
from analysis.runs.groups import Group, batch_curves, before_cliff, cliff_of, sample_of
from analysis.runs.quantities import percent
from analysis.runs.run import Run
from analysis.table import (
    Column,
    RunNumbers,
    Table,
    make_table,
    number,
    of_run,
    text,
    whole,
)
from bench.config import a_sample, column_noun, common_sample, rate_column, rate_unit


class _Gain(NamedTuple):
    group: Group
    to_smallest: float
    per_doubling: float | None
    note: str | None


def gains_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Each batch size of a curve against the smallest and the next smaller one, and the knee."""
    sample = sample_of(runs)
    of_group: list[Column[_Gain]] = of_run(lambda gain: gain.group)
    return make_table(
        "batch-gains",
        "Gains of larger batches, and the knee",
        [gain for curve in batch_curves(runs) if len(curve) > 1 for gain in _gains(curve)],
        *of_group,
        whole("batch_size", "batch", lambda gain: gain.group.batch_size),
        number(rate_column(sample), rate_unit(sample), lambda gain: gain.group.samples_per_s),
        number("ratio_to_smallest", "of the smallest batch's", lambda gain: gain.to_smallest),
        number("gain_per_doubling", "a doubling gave", lambda gain: gain.per_doubling,
               percent_change),
        text("note", "note", lambda gain: gain.note),
        text("runs", "runs", lambda gain: numbers.listed(gain.group.names)),
    )  # fmt: skip


def _gains(curve: Sequence[Group]) -> Iterator[_Gain]:
    knee, cliff = knee_of(curve), cliff_of(curve)
    gains = {large.names: gain_per_doubling(small, large) for small, large in steps_of(curve)}
    for place, group in enumerate(curve):
        note = "knee" if knee is not None and knee.knee is group else None
        if cliff is not None and place >= cliff:
            note = "memory spilled"
        ratio = group.samples_per_s / curve[0].samples_per_s
        yield _Gain(group, ratio, gains.get(group.names), note)


class Predicted(NamedTuple):
    """A fitted curve, and the group of its smallest batch, which stands for its settings."""

    group: Group
    curve: PredictedCurve


def predicted_curves(runs: Sequence[Run]) -> list[Predicted]:
    """Return the model of every curve with three batch sizes or more before any spill."""
    return [
        Predicted(curve[0], fit_curve(measured_batches(curve), least_sample_s(before_cliff(curve))))
        for curve in batch_curves(runs)
        if len(before_cliff(curve)) >= FEWEST_SIZES
    ]


def predictions_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """The two terms of each predicted curve, and what it misses batch sizes by."""
    found = predicted_curves(runs)
    sample = common_sample(one.group.sample for one in found)
    each = a_sample(sample)
    of_group: list[Column[Predicted]] = of_run(lambda one: one.group)
    return make_table(
        "predictions",
        f"Time of a step as a fixed cost and a cost {each}",
        found,
        *of_group,
        number("fixed_ms", "ms a step", lambda one: 1e3 * one.curve.model.fixed_s),
        number(f"per_{column_noun(sample)}_ms", f"ms {each}",
               lambda one: 1e3 * one.curve.model.per_sample_s),
        number(f"limit_{rate_column(sample)}", f"{rate_unit(sample)} at most",
               lambda one: _limit(one.curve.model)),
        text("measured_batches", "measured batches",
             lambda one: ", ".join(str(batch.batch_size) for batch in one.curve.measured)),
        number("held_out_error", "held-out error", lambda one: one.curve.held_out_error, percent),
        number("worst_held_out", "worst",
               lambda one: max(abs(error) for _, error in one.curve.held_out), percent),
        text("runs", "runs", lambda one: numbers.listed(one.curve.runs)),
    )  # fmt: skip


def _limit(model: StepModel) -> float | None:
    return 1 / model.per_sample_s if model.per_sample_s > 0 else None
