"""Samples/s at a batch size by a fitted curve, as far as the device's memory holds the batch.

    t(b) = fixed + per_sample * b

What a step costs once (launches, the optimizer's traffic over the parameters) and what each sample
costs (its arithmetic and its traffic, each linear in the batch). The roof bounds the second from
below: no sample can take less than its FLOP at the peak. With arithmetic and traffic both linear in
the batch, times alone cannot separate them, so they are one term. Fitted by least squares of
relative errors, since a step of ten times the length is no less surely measured; neither term is
negative (nnls).

The interval is of a new measurement at that batch: Student's t with as many degrees of freedom as
there are batch sizes beyond the model's two terms. The deviation is what the fit leaves over, with
the scatter of repeats, if it is known, as its floor. Beside it stands how far the model misses a
batch size that it was not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analysis.findings.batches import least_failed_batch
from analysis.presentation.words import counted, interval, percent, three_digits, whole_number
from analysis.runs.groups import BatchCurve, Group, Runs, names_of
from analysis.runs.run import Run
from analysis.runs.settings import is_implied_by
from bench.config import a_sample, column_noun, rate_column, rate_unit
from bench.errors import Unknown, UserError
from bench.records import MemoryFootprint
from bench.statistics.ratios import Interval, LogError

if TYPE_CHECKING:
    import pandas as pd

#: Two terms need two sizes, and an error a third.
FEWEST_SIZES = 3
_TERMS = 2
#: The settings whose product is the number of batches in a step.
_BATCHES = ("devices", "nodes", "grad_accum_steps")
#: Two terms are a fair model between measured sizes and near them, and a guess far from them.
_MOST_BEYOND = 4
#: Of the device's memory; the driver, the context and fragmentation need the rest.
_USABLE_SHARE = 0.95


class StepModel(NamedTuple):
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
    """Fit the two terms to two batch sizes or more.

    `least_per_sample_s` is what the roof asks for each sample. A roof that the measured steps
    outrun is wrong and left out.
    """
    from scipy import optimize  # which takes a third of a second

    batches, times = np.asarray(batch_sizes, dtype=float), np.asarray(steps_s, dtype=float)
    if np.any(least_per_sample_s * batches > times):
        least_per_sample_s = 0.0
    target = (times - least_per_sample_s * batches) / times
    design = np.column_stack([1 / times, batches / times])
    (fixed, above), _ = optimize.nnls(design, target)
    return StepModel(float(fixed), float(above) + least_per_sample_s)


@dataclass(frozen=True)
class PredictedCurve:
    """The fitted model, of one batch in a step.

    Errors are relative ones of samples/s: predicted over measured, less 1.

    `measured` are the batch sizes that no spill has touched, smallest first; `held_out` gives for
    each what the model fitted without it makes of it.
    """

    measured: tuple[Group, ...]
    model: StepModel
    held_out: tuple[tuple[int, float], ...]
    deviation: float

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids of all runs that the model was fitted to."""
        return names_of(self.measured)

    @property
    def held_out_error(self) -> float:
        """The root mean square of the held-out errors."""
        return math.sqrt(fmean(error**2 for _, error in self.held_out))

    @property
    def fixed_s(self) -> float:
        """What a step of all its batches, on every device, costs once; the model is of one."""
        settings = self.measured[0].first.settings
        counts = (whole_number(settings.get(name)) or 1 for name in _BATCHES)
        return self.model.fixed_s * math.prod(counts)

    def interval(self, batch_size: int) -> Interval:
        """Return the interval of samples/s that are measured at `batch_size`."""
        sizes, steps_s = _sizes_and_steps(self.measured)
        design = np.array([sizes, np.ones(len(sizes))]).T / np.array(steps_s)[:, None]
        row = np.array([batch_size, 1.0]) / self.model.step_s(batch_size)
        # x' (X'X)^-1 x of the relative fit: how far from the measured sizes this one lies
        leverage = float(row @ np.linalg.pinv(design.T @ design) @ row)
        error = LogError(self.deviation * math.sqrt(1 + leverage), len(sizes) - _TERMS)
        return error.interval(math.log(self.model.samples_per_s(batch_size)))

    def lines(self) -> Iterator[str]:
        """Yield the model for a terminal: its terms, its errors and its runs."""
        terms_s = self.fixed_s, self.model.per_sample_s
        fixed, each = (f"{three_digits(1e3 * term_s)} ms" for term_s in terms_s)
        yield f"model: {fixed} a step and {each} {a_sample(self.measured[0].sample)}"
        errors = (f"batch {batch} by {100 * error:+.1f} %" for batch, error in self.held_out)
        yield f"held out: missed by {percent(self.held_out_error)} ({', '.join(errors)})"
        yield f"runs: {' '.join(self.runs)}"


def fit_curve(curve: BatchCurve) -> PredictedCurve:
    """Fit the model to a curve before memory spills, and once without each batch size.

    Raises `UserError` for fewer than three sizes.
    """
    measured = curve.before_cliff
    if len(measured) < FEWEST_SIZES:
        here = ", ".join(f"{group.batch_size}" for group in measured) or "none"
        raise UserError(
            f"a prediction needs {FEWEST_SIZES} measured batch sizes, here {here}: measure more"
        )
    sizes, steps_s = _sizes_and_steps(measured)
    # The least time of a sample by the roof, of arithmetic alone: the bytes of a step hold its
    # parameters too, which are not of a sample.
    runs = [run for group in measured for run in group.runs]
    least_s = min((run.point.times.compute_s / run.record.measurement.samples_per_iteration
                   for run in runs if run.point and run.record and run.record.measurement),
                  default=0.0)  # fmt: skip
    model = fit_step(sizes, steps_s, least_s)
    held_out = []
    for group, size, step_s in zip(measured, sizes, steps_s, strict=True):
        others = [other for other in measured if other is not group]
        without = fit_step(*_sizes_and_steps(others), least_s)
        held_out.append((size, step_s / without.step_s(size) - 1))
    squares = ((model.step_s(n) / s - 1) ** 2 for n, s in zip(sizes, steps_s, strict=True))
    own = [one for group in measured if (one := group.repeats().log_variance) is not None]
    variance = max(sum(squares) / (len(sizes) - _TERMS), fmean(own or [0.0]))
    return PredictedCurve(measured, model, tuple(held_out), math.sqrt(variance))


def _sizes_and_steps(groups: Sequence[Group]) -> tuple[list[int], list[float]]:
    return [group.batch_size or 0 for group in groups], [group.step_s for group in groups]


def choose_curve(
    runs: Sequence[Run],
    arch: str,
    precision: str | None = None,
    env: str | None = None,
    seq_len: int | None = None,
) -> BatchCurve:
    """Return the only curve of that model and of what else is given.

    A precision is the one that ran, such as amp-bf16, or the one asked for. Raises `UserError`
    where none fits, and where several do: in which settings they differ.
    """
    asked = {"arch": arch, "precision": precision, "env": env, "seq_len": seq_len}
    wanted = {name: f"{value}" for name, value in asked.items() if value is not None}
    curves = Runs(run for run in runs if all(
        value in (run.settings.get(n), run.asked_for(n)) for n, value in wanted.items()
    )).curves  # fmt: skip
    if not curves:
        what = " ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise UserError(f"{what}: none of {counted(len(runs), 'run')} fits and has a throughput")
    if len(curves) > 1:
        settings = [curve[0].first.settings for curve in curves]
        names = sorted({name for each in settings for name in each} - {"batch_size"})
        values = {name: sorted({each.get(name, "none") for each in settings}) for name in names}
        differing = [name for name in names if len(values[name]) > 1]
        which = ", ".join(f"{name} ({', '.join(values[name])})" for name in differing
                          if not is_implied_by(name, differing))  # fmt: skip
        how = "choose one by precision, env, seq_len, campaign or a filter"
        raise UserError(f"arch={arch!r}: configurations that differ in {which} fit; {how}")
    return curves[0]


@dataclass(frozen=True)
class Prediction:
    """Samples/s at a batch size by a curve; `memory` says why the batch fits."""

    batch_size: int
    curve: PredictedCurve
    memory: str

    @property
    def of(self) -> Group:
        """A batch size that was measured: it has the model, the machine and what a sample is."""
        return self.curve.measured[0]

    @property
    def samples_per_s(self) -> float:
        """What the model gives."""
        return self.curve.model.samples_per_s(self.batch_size)

    @property
    def interval(self) -> Interval:
        """The interval of a new measurement."""
        return self.curve.interval(self.batch_size)

    @property
    def facts(self) -> dict[str, object]:
        """The prediction and the two terms of its model, for JSON and tables."""
        model, sample = self.curve.model, self.of.sample
        return {
            "label": self.of.series, "batch_size": self.batch_size,
            rate_column(sample): self.samples_per_s, **self.interval._asdict(),
            "fixed_s": self.curve.fixed_s, f"per_{column_noun(sample)}_s": model.per_sample_s,
            "held_out_error": self.curve.held_out_error, "memory": self.memory,
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the prediction for a terminal."""
        rate = f"{three_digits(self.samples_per_s)} {rate_unit(self.of.sample)}"
        span = interval(*self.interval)
        yield f"{self.of.series} batch {self.batch_size}: {rate} (95 %: {span})"
        yield f"    memory: {self.memory}"


def predict_batch(curve: BatchCurve, batch_size: int, runs: Sequence[Run] = ()) -> Prediction:
    """Predict a batch size from a curve (smallest batch first).

    `runs` are searched for those of the same configuration that ran out of memory. Raises
    `UserError` for too few sizes, a batch that may not fit into memory, and one too far from what
    was measured.
    """
    fitted = fit_curve(curve)
    sizes = [group.batch_size or 0 for group in fitted.measured]
    memory = _why_it_fits(curve, batch_size, max(sizes), runs)
    if not min(sizes) / _MOST_BEYOND <= batch_size <= max(sizes) * _MOST_BEYOND:
        raise UserError(
            f"batch_size={batch_size}: more than {_MOST_BEYOND} times beyond what was measured "
            f"({min(sizes)} to {max(sizes)}): measure a batch nearer to it"
        )
    return Prediction(batch_size, fitted, memory)


def _why_it_fits(curve: BatchCurve, batch_size: int, largest: int, runs: Sequence[Run]) -> str:
    """Why the batch fits into memory; raises `UserError` where it does not, or may not."""
    asked = f"batch_size={batch_size}:"
    if batch_size <= largest:
        return f"batch {largest} was measured, so a smaller one fits"
    if curve.cliff is not None:
        fell = f"batch {curve[curve.cliff].batch_size} fell to {curve[curve.cliff].rate}"
        raise UserError(f"{asked} {fell}, where memory spilled; predictions end at {largest}")
    failed = least_failed_batch(curve[0], runs, largest)
    if failed is not None and batch_size >= (failed.batch_size or 0):
        ran_out = f"batch {failed.batch_size} ran out of memory (run {failed.name})"
        raise UserError(f"{asked} {ran_out}; predictions end below it")
    memory = memory_of(curve)
    if isinstance(memory, Unknown):
        beyond = f"beyond the measured {largest}, and {memory.reason}"
        raise UserError(f"{asked} {beyond}; measure it, or ask for a batch within")
    sizes = (memory.need_bytes(batch_size), memory.device_bytes)
    need, total = (three_digits(size / 1e9) for size in sizes)
    if batch_size > memory.largest_batch:
        raise UserError(f"{asked} needs {need} GB by {memory.source}, the device has {total} GB; "
                        f"at most {memory.largest_batch} fits")  # fmt: skip
    return f"{need} of {total} GB by {memory.source}"


@dataclass(frozen=True)
class MemoryModel:
    """Bytes of a step and of the device: need(b) = fixed + per_sample * b.

    Measured peaks of two batch sizes or more give both terms. With one or none, the cost model
    does (weights, gradients and optimizer state once, activations for each sample), raised to the
    one measured peak where that is higher; `source` says which.
    """

    fixed_bytes: float
    bytes_per_sample: float
    device_bytes: int
    source: str

    @classmethod
    def of_cost(
        cls,
        memory: MemoryFootprint,
        batch_size: int,
        device_bytes: int,
        peak: tuple[int, int] = (1, 0),
    ) -> MemoryModel:
        """Return the cost model's of a step of `batch_size`; `peak` is a batch's measured one."""
        per_sample = memory.activations_bytes / batch_size
        fixed = memory.needed_bytes - memory.activations_bytes
        batch, peak_bytes = peak
        raised = max(1.0, peak_bytes / (fixed + per_sample * batch))
        source = "the cost model" + (", raised to the measured peak" if raised > 1 else "")
        return cls(fixed * raised, per_sample * raised, device_bytes, source)

    def need_bytes(self, batch_size: int) -> float:
        """Return what a step of `batch_size` needs."""
        return self.fixed_bytes + self.bytes_per_sample * batch_size

    @property
    def largest_batch(self) -> int:
        """The largest batch that fits into 95 % of the device's memory."""
        room = _USABLE_SHARE * self.device_bytes - self.fixed_bytes
        return max(int(room // (self.bytes_per_sample or 1)), 0)


def memory_of(curve: Sequence[Group]) -> MemoryModel | Unknown:
    """Return the memory model of a curve, or why there is none."""
    records = [run.record for group in curve for run in group.runs if run.record]
    if not records:
        return Unknown("imported runs do not tell how much memory they used and the device has")
    device_sizes: list[int] = []
    peaks: dict[int, int] = {}  # the highest of each batch size
    for record in records:
        if (there := record.environment) is not None:
            # processes on a CPU share its memory
            share = there.memory_bytes // record.config.devices
            size = share if there.device.backend == "cpu" else there.device.memory_bytes
            device_sizes += [size] if size else []
        if (measured := record.measurement) and (resolved := record.resolved):
            peak = measured.peak_memory_reserved_bytes or measured.peak_memory_allocated_bytes
            if peak:
                peaks[resolved.batch_size] = max(peaks.get(resolved.batch_size, 0), peak)
    if not device_sizes:
        return Unknown("the device's memory is not recorded")
    device_bytes = min(device_sizes)
    if len(peaks) > 1:
        sizes, needs = np.array(sorted(peaks.items()), dtype=float).T
        per_sample, fixed = np.polyfit(sizes, needs, 1)
        if per_sample > 0:
            return MemoryModel(max(fixed, 0.0), per_sample, device_bytes, "measured peaks")
    costs = (record.complexity for record in records)
    cost = next((cost for cost in costs if cost and cost.memory.activations_bytes), None)
    if cost is None:
        each = a_sample(curve[0].sample)
        return Unknown(f"neither peaks of two batch sizes nor a cost model tell what {each} needs")
    peak_of = max(peaks.items(), default=(1, 0))
    return MemoryModel.of_cost(cost.memory, cost.batch_size, device_bytes, peak_of)


def predict(
    runs: Sequence[Run],
    arch: str,
    batch_sizes: int | Iterable[int],
    *,
    precision: str | None = None,
    env: str | None = None,
    seq_len: int | None = None,
) -> pd.DataFrame:
    """Predict samples/s at batch sizes that were not measured, as `mlproject predict` does.

    `runs` are of three batch sizes or more, such as `pull_records(campaign="night-1").runs()`.
    `precision`, `env` (the machine's label) and `seq_len` in tokens are needed where the runs have
    several of the model.

    Columns: `label`, `batch_size`; `images_per_s` with the 95 % interval `low` and `high` of a new
    measurement; `fixed_s` and `per_image_s`, the terms of the model (`samples_per_s` and
    `per_sample_s` where it does not train on images); `held_out_error`, by what share the model
    misses the measured batch sizes when it is fitted without them; `memory`, what the batch needs.

    Raises `UserError` where no prediction can be made.
    """
    import pandas as pd

    curve = choose_curve(runs, arch, precision, env, seq_len)
    wanted = batch_sizes if isinstance(batch_sizes, Iterable) else [batch_sizes]
    table: pd.DataFrame = pd.DataFrame(predict_batch(curve, int(n), runs).facts for n in wanted)
    return table
