"""Samples/s on a machine that nothing was measured on, from shares of its roofs.

The time of each op is that of `shares.py`. The host's time, of a step and of each call, is beside
it: t = (device^3 + host^3)^(1/3) on a GPU, their sum on a processor.

Runs of one's own correct the shares of their kinds of ops: by what the profiled ops of a run took
over what the shares say of them on that machine. There the correction counts whole; on another
machine, and for products in another precision, by the part that published steps carried from chip
to chip.

The interval is learned from devices that were left out of the fit: a deviation of the device, which
all ops share, one for each class of ops on it, by its part of the time, and one of the model.
"""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis.account import StepAccount, account_of_times, class_of
from analysis.prediction.batch_size import MemoryModel
from analysis.prediction.shares import (
    HALVES,
    KINDS,
    PRODUCTS,
    UNPROVEN,
    Chip,
    Numbers,
    batched_tile,
    datasheet_reach,
    kernel_times_s,
    kernels_of,
    shares,
)
from analysis.presentation.words import interval, percent, three_digits
from analysis.roofs import Peaks, Roof, ceiling_by_name, datasheet_peaks, driver_name, rows_of
from bench.config import RunConfig, rate_column, rate_unit
from bench.config.resolved import MODES_OF, Sample
from bench.errors import Unknown, UserError
from bench.records import (
    CeilingsRecord,
    Environment,
    MathMode,
    Measurement,
    OpProfile,
    OpTime,
    RunRecord,
    StepSpec,
)
from bench.records.complexity import WORK, CallWork, ListedStep
from bench.records.metrics import data_wait_share

if TYPE_CHECKING:
    from analysis.comparison.machines import Cost, Prices
    from analysis.runs.run import Run
    from analysis.server.pull import RecordSet

#: Ops without a basis may carry so much of a predicted step.
MOST_UNPROVEN = 0.2
#: A kind of ops with this part of a run's time says half of what it says of its share: the time of
#: few and small ops is not that of large ones.
_SLIGHT = 0.02
#: A step that waits for its loader for more of its time runs at the loader's rate.
_WAITED = 0.1
_CONVOLUTIONS = PRODUCTS[2:]
#: The highest compute capability of the devices in the fit, and of those with convolutions in fp32.
_NEWEST, _NEWEST_CONVOLUTIONS = 8.0, 7.5

#: Lists the ops of a step; `bench.cost.cached_ops`.
Count = Callable[[StepSpec], ListedStep]


@dataclass(frozen=True)
class Target:
    """A device to predict for; its `capability` is NVIDIA's, None where unknown."""

    name: str
    mode: MathMode
    is_gpu: bool
    roof: Roof
    chip: Chip
    memory_bytes: int | None
    is_measured: bool
    capability: float | None
    rests_on: str
    is_amd: bool = False

    def is_newer(self, than: float) -> bool:
        """Whether it is an NVIDIA GPU of a higher compute capability, or of an unknown one."""
        return self.is_gpu and not self.is_amd and (self.capability or math.inf) > than


def find_target(
    name: str, precision: str, records: RecordSet | None = None, peaks: Sequence[Peaks] = ()
) -> Target:
    """Return the device of that name: as a driver gives it, or a machine's label in `records`.

    Its roofs are those measured on it, else the datasheet's. Raises `UserError` for a name that
    neither has, and for a precision that the device has no roof for.
    """
    met, table = _met(name, records), (*peaks, *datasheet_peaks())
    rows = rows_of(driver_name(met.device.name if met else name), peaks)
    rows = rows or [row for row in table if name == f"{row.devices}, {row.part}"]
    if met is None and not rows:
        names = {n.strip().casefold(): n for row in table for n in row.devices.split("|")}
        near = difflib.get_close_matches(name.casefold(), [*names], n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(names[match] for match in near)}?"
        remedy = hint if near else "give its row with --peaks"
        raise UserError(f"on={name!r}: no such device is known; {remedy}")
    if met is None and len({row.part for row in rows}) > 1:
        parts = " or ".join(f"{row.devices}, {row.part}" for row in rows)
        raise UserError(f"on={name!r}: parts of this name differ, write {parts}")
    if precision == "fp8":
        raise UserError("precision='fp8': no timing of products in fp8 is known; ask for amp")
    for mode in MODES_OF[precision]:
        if met and records:
            used = ceiling_by_name(
                met.device, mode, records.ceilings, (), because="", env=met.label
            )
            if used and used.record_id is not None:
                return _measured(met, mode, used.roof, used.record_id)
        if rows and mode in rows[0].flops_per_s:
            return _by_datasheet(name, mode, rows[0], met)
    raise UserError(
        f"on={name!r}: no roof of it in {' or '.join(MODES_OF[precision])}; measure it there with "
        "mlproject ceilings and give its --records, or ask for another --precision"
    )


def _met(name: str, records: RecordSet | None) -> Environment | None:
    """The environment of the newest record of a device or a machine's label of this name."""
    of_machines: list[RunRecord | CeilingsRecord] = []
    of_machines += [*records.measurements, *records.ceilings] if records else []
    named = [(made.created, there) for made in of_machines if (there := made.environment)
             if name.casefold() in (there.label.casefold(), there.device.name.casefold())
             ]  # fmt: skip
    return max(named, key=lambda pair: pair[0])[1] if named else None


def _measured(met: Environment, mode: MathMode, roof: Roof, record_id: str) -> Target:
    device, peak = met.device, roof.peak_flops_per_s
    is_gpu, processors = device.backend == "cuda", device.cores or met.cpu_cores_usable
    name = device.compute_capability or ""
    is_amd = name.startswith("gfx")  # an architecture of AMD's, not a number
    capability = float(name) if name and not is_amd else None
    rates = peak, roof.peak_bytes_per_s, peak
    chip = Chip(*rates, processors, mode if is_gpu else "tf32", batched_tile(capability))
    memory = met.memory_bytes if device.backend == "cpu" else device.memory_bytes
    why = f"its measured roofs ({record_id})"
    return Target(device.name, mode, is_gpu, roof, chip, memory, True, capability, why, is_amd)


def _by_datasheet(name: str, mode: MathMode, row: Peaks, met: Environment | None) -> Target:
    if not row.processors:
        raise UserError(
            f"on={name!r}: its row has no number of processors, without which no op time is known; "
            "measure its roofs with mlproject ceilings, and give --records"
        )
    compute, memory = datasheet_reach(row, shares()["shares"], mode)
    peak, rate = row.flops_per_s[mode], row.bytes_per_s
    rates, capability = (compute * peak, memory * rate, peak), row.compute_capability
    chip = Chip(*rates, row.processors, mode, batched_tile(capability))
    size = met.device.memory_bytes if met else row.memory_bytes
    roof, why = Roof(peak, rate), f"its datasheet ({row.source})"
    return Target(name, mode, True, roof, chip, size, False, capability, why)


def _op_times_s(ops: Sequence[CallWork], target: Target, nhwc: bool) -> tuple[Numbers, Any]:
    """Seconds of all calls of each op, and its kind, of several kernels that of the first."""
    fitted: dict[str, float] = dict(shares()["shares"])
    if target.is_gpu and target.mode != "fp32":  # products of all kinds have one share there
        fitted |= dict.fromkeys(PRODUCTS, fitted["tensor"])
    elif target.is_newer(_NEWEST_CONVOLUTIONS):
        for kind in (*_CONVOLUTIONS, "winograd"):
            fitted[kind] *= fitted["newer_convolution"]
    is_short = target.is_gpu and target.mode in HALVES
    kernels, kinds = kernels_of(ops, nhwc if is_short else None), np.zeros(len(ops), dtype=int)
    times_s = kernel_times_s(kernels, target.chip, fitted) * kernels["calls"]
    kinds[kernels["op"][::-1]] = kernels["kind"][::-1]
    return np.bincount(kernels["op"], times_s, len(ops)).astype(float), kinds


def _timed(op: CallWork, time_s: float) -> OpTime:
    """The op as a profile has one, of all its calls."""
    work = {name: op.calls * getattr(op, name) for name in (*WORK, "causal_skipped_flops")}
    named = {name: getattr(op, name) for name in ("label", "op", "phase", "calls")}
    return OpTime(**named, **work, time_s=time_s, exclusive_s=time_s, missing={})


def _keys(op: OpTime | CallWork) -> tuple[tuple[str, str], ...]:
    """What an op's kind is known by: its label and phase, else its class."""
    return (op.label, op.phase or ""), (class_of(op), "")


@dataclass(frozen=True)
class OwnRuns:
    """What runs on one device in one precision say of the shares of each kind of ops.

    They are logarithms of measured over predicted times. `host_call_s` is what each call waits for
    the host, where ops run on it.
    """

    device: str
    mode: MathMode
    is_gpu: bool
    count: int
    ratios: Mapping[tuple[str, str], float]
    host_call_s: float | None

    def ratio(self, op: CallWork) -> float | None:
        """Return that of ops like `op`, or None where no run had one."""
        return next((self.ratios[key] for key in _keys(op) if key in self.ratios), None)


def own_runs(runs: Sequence[Run], count: Count) -> list[OwnRuns]:
    """Return what the profiled steps of `runs` say, for each device; the most runs first.

    Those whose ops cannot be listed, a script's or of a model that is not here, say nothing.
    """
    groups: dict[tuple[str, MathMode], list[_Profiled]] = defaultdict(list)
    for run in runs:
        record = run.record
        if not (record and record.ops and run.point and record.environment and record.resolved):
            continue
        if (mode := record.resolved.math_mode) == "fp8":
            continue
        target = _measured(record.environment, mode, run.point.roof, record.record_id)
        with suppress(UserError):
            ops = count(StepSpec.of(record.config, record.resolved)).ops
            times_s, _ = _op_times_s(ops, target, record.resolved.channels_last)
            step = target, [*zip(ops, times_s, strict=True)], record.ops, record.measurement
            groups[target.name, mode].append(step)
    return sorted(map(_of_device, groups.values()), key=lambda own: -own.count)


#: A run's device, its ops with their predicted times, its profile and its measurement.
_Profiled = tuple[Target, list[tuple[CallWork, float]], OpProfile, Measurement | None]


def _of_device(steps: Sequence[_Profiled]) -> OwnRuns:
    took_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    predicted_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    rest_s, calls = 0.0, 0
    for _, ops, profile, timed in steps:
        # The profile of a CUDA graph, or of a compiled model, has other names for some ops.
        seen = {key for op in profile.ops for key in _keys(op)}
        for listed, time_s in ops:
            for key in seen.intersection(_keys(listed)):
                predicted_s[key] += time_s
        # Profiling stretches a step on a processor, and not the kernels of a device.
        on_host = profile.device_busy_share is None
        stretch = timed.step_s / profile.step_time_s if timed and on_host else 1.0
        for op in profile.ops:
            for key in _keys(op):
                took_s[key] += stretch * op.exclusive_s
        if on_host:
            rest_s += stretch * (profile.step_time_s - profile.exclusive_s)
            calls += sum(op.calls for op, _ in ops)
    whole_s = sum(took_s.values()) / 2  # by both keys
    ratios = {key: math.log(time_s / predicted_s[key]) * time_s / (time_s + _SLIGHT * whole_s)
              for key, time_s in took_s.items() if time_s and predicted_s.get(key)}  # fmt: skip
    device = steps[-1][0]
    host_call_s = rest_s / calls if calls else None
    return OwnRuns(device.name, device.mode, device.is_gpu, len(steps), ratios, host_call_s)


class Loader(NamedTuple):
    """The most samples a second that a loader was seen to give, and the run that saw it."""

    samples_per_s: float
    sample: Sample
    run: str


def fastest_loader(records: Iterable[RunRecord]) -> Loader | None:
    """Return the fastest of those that ran alone or that a step waited for; None without one."""
    loaders = [
        Loader(measured.samples_per_iteration / measured.step_s, resolved.sample, record.record_id)
        for record in records
        if (measured := record.measurement) and (resolved := record.resolved)
        if record.config.data_only or (data_wait_share(measured, record.ops) or 0) > _WAITED
    ]
    return max(loaders, default=None)


@dataclass(frozen=True)
class Elsewhere:
    """A predicted step on a device, with how sure it is.

    `deviation` is of the logarithm of the time, in `loader_s` of which it waits for the loader.
    `unproven` is the part of the time that no timing supports. `rests_on` are sentences. `cost` is
    None where no price was given.
    """

    target: Target
    config: RunConfig
    step: ListedStep
    account: StepAccount
    deviation: float
    unproven: float
    rests_on: tuple[str, ...]
    loader_s: float = 0.0
    cost: Cost | Unknown | None = None

    @property
    def samples_per_s(self) -> float:
        """Samples a second."""
        return int(self.config.batch_size) / self.account.step_time_s

    def interval(self, level: int) -> tuple[float, float]:
        """Return the interval of samples/s, of 50 or 90 %; a loader's rate ends it."""
        factor = math.exp(shares()["quantiles"][f"{level}"] * self.deviation)
        alone = int(self.config.batch_size) / (self.account.step_time_s - self.loader_s)
        most = self.samples_per_s if self.loader_s else math.inf
        return min(alone / factor, most), min(alone * factor, most)

    def facts(self) -> dict[str, Any]:
        """Return the prediction for JSON."""
        (low_50, high_50), (low_90, high_90) = self.interval(50), self.interval(90)
        return {
            "on": self.target.name, "arch": self.config.arch,
            "batch_size": self.config.batch_size, "precision": self.config.precision,
            "math_mode": self.target.mode, rate_column(self.step.sample): self.samples_per_s,
            "low_50": low_50, "high_50": high_50, "low_90": low_90, "high_90": high_90,
            "deviation": self.deviation, "unproven_share": self.unproven,
            "roofs_are_measured": self.target.is_measured, **self.account.facts(),
            "memory_needed_bytes": self.step.memory.needed_bytes,
            "memory_bytes": self.target.memory_bytes,
            "cost_per_million_samples": self.cost.per_million_samples if self.cost else None,
            **(self.cost.price.row if self.cost else {}), "rests_on": [*self.rests_on],
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield it for a terminal."""
        what = f"{self.config.arch} {self.target.mode} batch {self.config.batch_size}"
        rate = f"{three_digits(self.samples_per_s)} {rate_unit(self.step.sample)}"
        likely, sure = (interval(*self.interval(level)) for level in (50, 90))
        yield f"{what} on {self.target.name}: {rate} (50 %: {likely}; 90 %: {sure})"
        yield f"    step: {three_digits(1e3 * self.account.step_time_s)} ms, not measured"
        for line in self.account.lines():
            yield f"    {line}"
        need, there = self.step.memory.needed_bytes, self.target.memory_bytes
        of = f"of {three_digits(there / 1e9)} GB" if there else "; the device's is not known"
        yield f"    memory: needs {three_digits(need / 1e9)} GB {of}"
        if self.cost:
            yield f"    cost: {self.cost} a million {self.step.sample}s ({self.cost.price})"
        elif isinstance(self.cost, Unknown):
            yield f"    cost: {self.cost.reason}"
        for sentence in self.rests_on:
            yield f"    rests on {sentence}"


def predict_on(
    target: Target,
    config: RunConfig,
    count: Count,
    own: Sequence[OwnRuns] = (),
    prices: Prices | None = None,
    loader: Loader | None = None,
) -> Elsewhere:
    """Predict a configuration's step on `target`, no faster than `loader` if it has such samples.

    Raises `UserError` where memory does not hold it, and where ops without a basis carry over 20 %
    of its time.
    """
    spec = StepSpec.of(config)
    step = count(replace(spec, math_mode=target.mode, backend="cuda" if target.is_gpu else "cpu"))
    _check_memory(step, target, config)
    guess = _Guess(step.ops, target, own, config.channels_last != "false")
    timed = list(map(_timed, step.ops, guess.times_s))
    step_s = guess.step_s
    unproven = guess.part_of(guess.unproven, step_s)
    if unproven > MOST_UNPROVEN:
        without = [op for op, has_none in zip(timed, guess.unproven, strict=True) if has_none]
        most = class_of(max(without, key=lambda op: op.time_s))
        raise UserError(
            f"on={target.name!r}: no timing supports ops that carry {percent(unproven)} of the "
            f"step, most of it {most}; give --records with a profiled run in {target.mode} of a "
            "model that has them, on any device of known roofs"
        )
    rests_on, loader_s = [*guess.rests_on()], 0.0
    if loader and loader.sample == step.sample:
        loader_s = max(int(config.batch_size) / loader.samples_per_s - step_s, 0.0)
    if loader and loader_s:
        gives = f"{three_digits(loader.samples_per_s)} {rate_unit(loader.sample)}"
        rests_on.append(f"a loader that gives {gives} ({loader.run}), and the step waits for it")
    account = account_of_times(
        timed, target.roof, step_s + loader_s, on_host=not target.is_gpu, loader_s=loader_s
    )
    known = target, config, step, account, guess.deviation, unproven, tuple(rests_on), loader_s
    rate = int(config.batch_size) / account.step_time_s
    return Elsewhere(*known, prices.cost_at([target.name], rate) if prices else None)


def _check_memory(step: ListedStep, target: Target, config: RunConfig) -> None:
    if target.memory_bytes is None:
        return
    held = MemoryModel.of_cost(step.memory, int(config.batch_size), target.memory_bytes)
    if (most := held.largest_batch) < int(config.batch_size):
        needed, there = step.memory.needed_bytes / 1e9, target.memory_bytes / 1e9
        raise UserError(
            f"batch_size={config.batch_size}: {config.arch} needs {three_digits(needed)} GB by "
            f"{held.source}, {target.name} has {three_digits(there)} GB; at most a batch of {most} "
            "fits"
        )


class _Guess:
    """The times of a step's ops, and what each is known from."""

    def __init__(
        self, ops: Sequence[CallWork], target: Target, own: Sequence[OwnRuns], nhwc: bool
    ) -> None:
        fitted = self._fitted = shares()
        self._target = target
        # Runs there in the same precision, in another one, on another GPU in the same one.
        like = [runs for runs in own if runs.device == target.name or
                (runs.is_gpu and target.is_gpu and runs.mode == target.mode)]  # fmt: skip
        like.sort(key=lambda runs: (runs.device != target.name, runs.mode != target.mode))
        runs = self._own = next(iter(like), None)
        self._is_same = runs is not None and runs.device == target.name
        ratios = [runs.ratio(op) if runs else None for op in ops]
        times_s, self._kinds = _op_times_s(ops, target, nhwc)
        # Products in another precision are other kernels; none in 16 bits on a CPU was timed.
        self._is_other = runs is not None and runs.mode != target.mode
        of_others = self._is_other & (self._kinds < len(PRODUCTS))
        self._part = np.where(self._is_same & ~of_others, 1.0, fitted["carried"])
        has_basis = ~of_others | (target.is_gpu or target.mode == "fp32")
        self._corrected = np.array([ratio is not None for ratio in ratios]) & has_basis
        self.times_s = times_s * np.exp(self._part * [ratio or 0.0 for ratio in ratios])
        is_unproven = (self._kinds == KINDS.index(UNPROVEN)) | (not target.is_gpu)
        self.unproven = is_unproven & ~self._corrected
        kinds = [KINDS.index(kind) for kind in _CONVOLUTIONS]
        self._convolves = self.part_of(np.isin(self._kinds, kinds)) > _SLIGHT
        fixed_s, call_s = (fitted["shares"][f"host_{of}_s"] for of in ("step", "call"))
        own_call_s = runs.host_call_s if runs and self._is_same else None
        if own_call_s is not None or not target.is_gpu:
            fixed_s, call_s = 0.0, own_call_s or 0.0
        device_s = float(self.times_s.sum())
        host_s = fixed_s + call_s * sum(op.calls for op in ops)
        together_s = (device_s**3 + host_s**3) ** (1 / 3)
        self.step_s: float = together_s if target.is_gpu else device_s + host_s

    def part_of(self, some: Any, whole_s: float | None = None) -> float:
        """Return the part of `whole_s`, by default of all ops' time, that some ops take."""
        return float(self.times_s[some].sum() / (whole_s or self.times_s.sum()))

    @property
    def deviation(self) -> float:
        """The deviation of the logarithm of the step's time."""
        errors, target = dict(self._fitted["errors"]), self._target
        if self._is_other or (target.is_gpu and target.mode != "fp32"):
            errors |= dict.fromkeys(("product", "convolution"), errors["tensor"])
        elif target.is_newer(_NEWEST_CONVOLUTIONS):
            errors["convolution"] = max(errors["convolution"], errors["newer_convolution"])
        names = ["product"] * 2 + ["convolution"] * len(_CONVOLUTIONS)
        names += [kind if kind in errors else "pass" for kind in KINDS[len(PRODUCTS) :]]
        of_op = np.where(self.unproven, UNPROVEN, np.array(names)[self._kinds])
        left = 1.0 if self._is_other else np.sqrt(1 - self._part**2)
        corrected = np.where(self._corrected, 1 - left, 0.0)
        parts = (1 - corrected) * self.times_s / self.step_s
        variance = sum((errors[name] * parts[of_op == name].sum()) ** 2 for name in set(of_op))
        chip = math.hypot(errors["device"], errors["amd"] if target.is_amd else 0.0)
        variance += (chip * (parts.sum() if self._is_same else 1.0)) ** 2
        variance *= errors["newer"] ** 2 if target.is_newer(_NEWEST) else 1.0
        variance += 2 * errors["model"] ** 2  # of the model, and of the step alone
        waiting = max(self.step_s - self.times_s.sum(), 0.0) / self.step_s
        return float(math.sqrt(variance + (errors["host"] * waiting) ** 2))

    def rests_on(self) -> Iterator[str]:
        """Yield what the prediction rests on, and what it lacks."""
        target, wider = self._target, "there is no published op time, so the interval is wider"
        yield target.rests_on
        if target.is_gpu:
            yield f"published times ({self._fitted['source']})"
        if target.is_gpu and target.mode != "fp32":
            yield f"runs on three devices for {target.mode} on tensor cores: {wider}"
        elif target.is_newer(_NEWEST_CONVOLUTIONS) and self._convolves:
            yield f"two runs on an H200 for convolutions in fp32: {wider}"
        if target.is_newer(_NEWEST):
            yield f"shares of devices that are older, up to an A100: {wider}"
        if target.is_amd:
            missed = percent(self._fitted["errors"]["amd"])
            yield f"NVIDIA's shares for AMD, which missed steps on an MI100 by {missed}: {wider}"
        if runs := self._own:
            part = percent(self.part_of(self._corrected))
            yield f"{runs.count} of your runs in {runs.mode}, for ops that take {part} of the time"
        if self.unproven.any():
            yield f"no timing of ops that take {percent(self.part_of(self.unproven))} of the time"
