"""Time of a step over its batch size, from the terms of the roofline.

    t(b) = fixed + per_sample * b

What a step costs once (launches, the optimizer's traffic over the parameters) and what each sample
costs (its arithmetic and its traffic, each linear in the batch). The roof bounds the second from
below: no sample can take less than the larger of its FLOP and its fused bytes at the peaks. With
arithmetic and traffic both linear in the batch, times alone cannot separate them, so they are one
term.

Fitted by least squares of relative errors, since a step of ten times the length is no less surely
measured; neither term is negative (nnls).

The interval is of a new measurement at that batch: Student's t with as many degrees of freedom as
there are batch sizes beyond the model's two terms, so with three sizes it is as wide as one degree
of freedom makes it. The deviation is what the fit leaves over, with the scatter of repeats, if it
is known, as its floor. Beside it stands how far the model misses a batch size that it was not
fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from analysis.runs.groups import Group, batch_curves, before_cliff
from analysis.runs.run import Run
from analysis.runs.what_ran import follows
from bench.errors import UserError


@dataclass(frozen=True)
class StepModel:
    """Seconds: once a step, and for each sample."""

    fixed_s: float
    per_sample_s: float

    def step_s(self, batch_size: float) -> float:
        """Return the time of a step of `batch_size` samples."""
        return self.fixed_s + self.per_sample_s * batch_size

    def samples_per_s(self, batch_size: float) -> float:
        """Return the throughput at `batch_size`."""
        return batch_size / self.step_s(batch_size)


def fit_step(
    batch_sizes: Sequence[float], steps_s: Sequence[float], least_per_sample_s: float = 0.0
) -> StepModel:
    """Fit the two terms; `least_per_sample_s` is what the roof asks for each sample.

    Needs two batch sizes. A roof that the measured steps outrun is left out: it is wrong.
    """
    batches, times = np.asarray(batch_sizes, dtype=float), np.asarray(steps_s, dtype=float)
    if np.any(least_per_sample_s * batches > times):
        least_per_sample_s = 0.0
    design = np.column_stack([np.ones_like(batches), batches]) / times[:, None]
    target = (times - least_per_sample_s * batches) / times
    (fixed, above), _ = optimize.nnls(design, target)
    return StepModel(float(fixed), float(above) + least_per_sample_s)


def leverage(
    batch_sizes: Sequence[float], steps_s: Sequence[float], at: float, at_s: float
) -> float:
    """Return x' (X'X)^-1 x of the relative fit: how far from the measured sizes `at` lies."""
    batches, times = np.asarray(batch_sizes, dtype=float), np.asarray(steps_s, dtype=float)
    design = np.column_stack([np.ones_like(batches), batches]) / times[:, None]
    place = np.array([1.0, at]) / at_s
    return float(place @ np.linalg.pinv(design.T @ design) @ place)


#: Two terms need two sizes, and an error a third.
FEWEST_SIZES = 3
_TERMS = 2


@dataclass(frozen=True)
class MeasuredBatch:
    """A batch size with the throughput of its repeats, their relative deviation and their runs."""

    batch_size: int
    samples_per_s: float
    relative_deviation: float | None
    runs: tuple[str, ...]

    @property
    def step_s(self) -> float:
        """Time of a step by its throughput."""
        return self.batch_size / self.samples_per_s


@dataclass(frozen=True)
class PredictedCurve:
    """The fitted model. Errors are relative ones of samples/s: predicted over measured, less 1.

    `held_out` gives for each batch size what the model fitted without it makes of it.
    """

    measured: tuple[MeasuredBatch, ...]
    model: StepModel
    least_per_sample_s: float  # by the roof, 0 where there is none
    held_out: tuple[tuple[int, float], ...]
    deviation: float

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids of all runs that the model was fitted to."""
        return tuple(name for one in self.measured for name in one.runs)

    @property
    def held_out_error(self) -> float:
        """The root mean square of the held-out errors."""
        return math.sqrt(sum(error**2 for _, error in self.held_out) / len(self.held_out))

    def samples_per_s(self, batch_size: int, level: float = 0.95) -> tuple[float, float, float]:
        """Return the predicted samples/s with both ends of its interval."""
        value = self.model.samples_per_s(batch_size)
        sizes, steps_s = _columns(self.measured)
        spread = leverage(sizes, steps_s, batch_size, self.model.step_s(batch_size))
        quantile = float(special.stdtrit(len(sizes) - _TERMS, (1 + level) / 2))
        factor = math.exp(quantile * self.deviation * math.sqrt(1 + spread))
        return value, value / factor, value * factor


def measured_batches(curve: Sequence[Group]) -> list[MeasuredBatch]:
    """Return the batch sizes of a curve, smallest first, as far as no memory spilled."""
    sound = [(group, group.repeats()) for group in before_cliff(curve)]
    return [
        MeasuredBatch(one.batch_size or 0, known.centre, known.relative_deviation, one.names)
        for one, known in sound
    ]


def fit_curve(measured: Sequence[MeasuredBatch], least_per_sample_s: float = 0.0) -> PredictedCurve:
    """Fit the model and leave each batch size out once.

    Raises `UserError` for fewer than three sizes.
    """
    if len(measured) < FEWEST_SIZES:
        known = ", ".join(f"{one.batch_size}" for one in measured) or "none"
        raise UserError(
            f"a prediction needs {FEWEST_SIZES} measured batch sizes, here {known}: measure more"
        )
    sizes, steps_s = _columns(measured)
    model = fit_step(sizes, steps_s, least_per_sample_s)
    held_out = tuple(
        _held_out(measured, place, least_per_sample_s) for place in range(len(measured))
    )
    left = [model.step_s(b) / t - 1 for b, t in zip(sizes, steps_s, strict=True)]
    residual = math.sqrt(sum(error**2 for error in left) / (len(sizes) - _TERMS))
    scatter = [one.relative_deviation for one in measured if one.relative_deviation is not None]
    repeats = math.sqrt(sum(one**2 for one in scatter) / len(scatter)) if scatter else 0.0
    deviation = max(residual, repeats)
    return PredictedCurve(tuple(measured), model, least_per_sample_s, held_out, deviation)


def least_sample_s(curve: Sequence[Group]) -> float:
    """Return the least time of a sample by the roof that the curve's runs stand under, else 0.

    Of arithmetic alone: the bytes of a step hold its parameters too, which are not of a sample.
    """
    found = []
    for run in (run for group in curve for run in group.runs):
        measurement = run.record.measurement if run.record else None
        if run.point is not None and measurement is not None:
            found.append(run.point.times.compute_s / measurement.samples_per_iteration)
    return min(found, default=0.0)


def _held_out(
    measured: Sequence[MeasuredBatch], place: int, least_per_sample_s: float
) -> tuple[int, float]:
    left = measured[place]
    others = [*measured[:place], *measured[place + 1 :]]
    model = fit_step(*_columns(others), least_per_sample_s)
    return left.batch_size, model.samples_per_s(left.batch_size) / left.samples_per_s - 1


def _columns(measured: Sequence[MeasuredBatch]) -> tuple[list[float], list[float]]:
    return [float(one.batch_size) for one in measured], [one.step_s for one in measured]


def choose_curve(
    runs: Sequence[Run],
    arch: str,
    precision: str | None = None,
    env: str | None = None,
    seq_len: int | None = None,
) -> list[Group]:
    """Return the only curve of that model; what else is given matters too.

    A precision is the one that ran, such as amp-bf16, or the one asked for.

    Raises `UserError` where none fits, and where several do: in which settings they differ.
    """
    tokens = None if seq_len is None else f"{seq_len}"
    asked = {"arch": arch, "precision": precision, "env": env, "seq_len": tokens}
    wanted = {name: value for name, value in asked.items() if value is not None}
    fitting = [
        run
        for run in runs
        if all(value in (run.settings.get(n), run.asked_for(n)) for n, value in wanted.items())
    ]
    curves = batch_curves(fitting)
    if not curves:
        what = " ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise UserError(f"{what}: none of the {len(runs)} runs fits and has a throughput")
    if len(curves) > 1:
        settings = [curve[0].first.settings for curve in curves]
        names = sorted({name for each in settings for name in each} - {"batch_size"})
        differing = [name for name in names if len({each.get(name) for each in settings}) > 1]
        remedy = ", ".join(
            f"{name} ({', '.join(sorted({each.get(name, 'none') for each in settings}))})"
            for name in differing
            if not follows(name, differing)
        )
        raise UserError(f"arch={arch!r}: several configurations fit, choose one by {remedy}")
    return curves[0]
