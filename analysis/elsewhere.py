"""Samples/s on a machine that nothing was measured on, from shares of its roofs.

The time of each op is that of `analysis.shares`. What the step waits for the host is added as the
longer of the two has it: t = (device^3 + host^3)^(1/3), the host's time in proportion to the calls.

Runs of one's own correct the shares of their kinds of ops: by what the run's profiled ops took over
what the shares say of them on their own machine. On that machine the correction counts whole, on
another one by the part that published steps carried from chip to chip.

The interval is learned from devices that were left out of the fit: a deviation of the roofs, which
all ops share, and one for each class of ops, by its part of the time.
"""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.account import StepAccount, account_of_times, class_of
from analysis.roofs.ceilings import ceiling_by_name, driver_name, rows_of
from analysis.roofs.roof import Peaks, Roof, datasheet_peaks
from analysis.runs.run import Run
from analysis.shares import (
    KINDS,
    PRODUCTS,
    UNPROVEN,
    Chip,
    Numbers,
    datasheet_reach,
    kernel_times_s,
    kernels_of,
    shares,
)
from analysis.words import interval, percent, three_digits
from bench.config import RunConfig, rate_column, rate_unit
from bench.errors import Unknown, UserError
from bench.records import CeilingsRecord, Environment, MathMode, OpTime, RunRecord, StepSpec
from bench.records.complexity import WORK, ListedOp, ListedStep

if TYPE_CHECKING:
    from analysis.comparison.prices import Cost, Prices
    from analysis.server.pull import RecordSet

#: Ops without a basis may carry so much of a predicted step.
MOST_UNPROVEN = 0.2
#: Of the device's memory; the driver, the context and fragmentation need the rest.
_USABLE_SHARE = 0.95
#: A kind of ops with this part of a run's time says half of what it says of its share: the time of
#: few and small ops is not that of large ones.
_SLIGHT = 0.02
_CONVOLUTIONS = PRODUCTS[2:]
_MODES: Mapping[str, tuple[MathMode, ...]] = {
    "fp32": ("fp32",), "tf32": ("tf32",), "amp": ("bf16", "fp16"), "amp-bf16": ("bf16",),
    "amp-fp16": ("fp16",),
}  # fmt: skip

#: Lists the ops of a step; `bench.cost.cached_ops`.
Count = Callable[[StepSpec], ListedStep]


@dataclass(frozen=True)
class Target:
    """A device to predict for. `rests_on` says what its roofs are, `doubts` what they lack."""

    name: str
    mode: MathMode
    backend: str
    roof: Roof
    chip: Chip
    memory_bytes: int | None
    is_measured: bool
    rests_on: str
    is_newer: bool = False  # than the devices whose convolutions in fp32 were timed

    @property
    def is_gpu(self) -> bool:
        """Whether published shares are of its kind."""
        return self.backend == "cuda"


def find_target(
    name: str, precision: str, known: RecordSet | None = None, peaks: Sequence[Peaks] = ()
) -> Target:
    """Return the device of that name: as a driver gives it, or a machine's label in `known`.

    Its roofs are those measured on it, else the datasheet's. Raises `UserError` for a name that
    neither has, and for a precision that the device has no roof for.
    """
    met = _met(name, known)
    device_name = driver_name(met.device.name if met else name)
    rows = rows_of(device_name, peaks) or [
        row for row in (*peaks, *datasheet_peaks()) if name == f"{row.devices}, {row.part}"
    ]
    if met is None and not rows:
        raise UserError(f"on={name!r}: {_unknown_name(name, known, peaks)}")
    if met is None and len({row.part for row in rows}) > 1:
        parts = " or ".join(f"{row.devices}, {row.part}" for row in rows)
        raise UserError(f"on={name!r}: parts of this name differ, write {parts}")
    reasons = []
    for mode in _MODES[precision]:
        if met and known:
            used = ceiling_by_name(met.device, mode, known.ceilings, (), because="", env=met.label)
            if used and used.record_id is not None:
                return _measured(met, mode, used.roof, used.record_id)
        row = rows[0] if rows else None
        if row is not None and mode in row.flops_per_s:
            return _by_datasheet(name, mode, row, met)
        reasons.append(mode)
    raise UserError(
        f"on={name!r}: no roof of it in {' or '.join(reasons)}; measure it there with mlproject "
        "ceilings and give its --records, or ask for another --precision"
    )


def _met(name: str, known: RecordSet | None) -> Environment | None:
    """The environment of the newest record of a device or a machine's label of this name."""
    if known is None:
        return None
    records: list[RunRecord | CeilingsRecord] = [*known.measurements, *known.ceilings]
    wanted = name.casefold()
    fitting = [
        one
        for one in records
        if (there := one.environment)
        and wanted in (there.label.casefold(), there.device.name.casefold())
    ]
    return max(fitting, key=lambda one: one.created).environment if fitting else None


def _unknown_name(name: str, known: RecordSet | None, peaks: Sequence[Peaks]) -> str:
    names = {n.strip() for row in (*peaks, *datasheet_peaks()) for n in row.devices.split("|")}
    if known is not None:
        names |= {one.environment.device.name for one in known.measurements if one.environment}
    words = {one.casefold(): one for one in names}
    near = difflib.get_close_matches(name.casefold(), [*words], n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(words[one] for one in near)}?" if near else ""
    return f"no such device is known; {hint or 'give its row with --peaks'}"


def _measured(met: Environment, mode: MathMode, roof: Roof, record_id: str) -> Target:
    device = met.device
    processors = device.cores or met.cpu_cores_usable
    chip = Chip(roof.peak_flops_per_s, roof.peak_bytes_per_s, roof.peak_flops_per_s, processors,
                fp32=mode == "fp32" and device.backend == "cuda")  # fmt: skip
    memory = met.memory_bytes if device.backend == "cpu" else device.memory_bytes
    capability = float(device.compute_capability or 0)
    return Target(device.name, mode, device.backend, roof, chip, memory, True,
                  f"its measured roofs ({record_id})", capability >= 8)  # fmt: skip


def _by_datasheet(name: str, mode: MathMode, row: Peaks, met: Environment | None) -> Target:
    if not row.processors:
        raise UserError(
            f"on={name!r}: published op times are of NVIDIA's devices alone, and its row has no "
            "number of processors; measure its roofs with mlproject ceilings, and give --records"
        )
    compute, memory = datasheet_reach(row, shares()["shares"])
    roof = Roof(row.flops_per_s[mode], row.bytes_per_s)
    chip = Chip(compute * roof.peak_flops_per_s, memory * roof.peak_bytes_per_s,
                roof.peak_flops_per_s, row.processors, fp32=mode == "fp32")  # fmt: skip
    held = met.device.memory_bytes if met else None
    size = held or (int(1e9 * row.memory_gb) if row.memory_gb else None)
    return Target(name, mode, "cuda", roof, chip, size, False, f"its datasheet ({row.source})",
                  "tf32" in row.flops_per_s)  # fmt: skip


def _shares_on(target: Target) -> Mapping[str, float]:
    """The fitted shares, by what is known of tensor cores and of newer devices."""
    known: dict[str, float] = dict(shares()["shares"])
    scale = 1.0
    if target.is_gpu and target.mode != "fp32":
        known |= {kind: known.get(kind, 1.0) * known["tensor"] for kind in PRODUCTS}
        known["winograd"] *= known["tensor"]
    elif target.is_gpu and target.is_newer:
        scale = known["newer_convolution"]
        known |= {kind: known[kind] * scale for kind in _CONVOLUTIONS}
        known["winograd"] *= scale
    return known


@dataclass(frozen=True)
class OwnRuns:
    """What runs of one's own say of the shares: logarithms of measured over predicted times.

    By label and phase of ops, and by their class; `host_s` is what each call waits for the host.
    """

    device: str
    runs: tuple[str, ...]
    modes: frozenset[str]
    ratios: Mapping[tuple[str, str], float]
    host_call_s: float | None

    def ratio(self, op: ListedOp) -> float | None:
        """Return that of ops like `op`, or None where no run had one."""
        for key in ((op.label, op.phase), (class_of(_timed(op, 0.0)), "")):
            if key in self.ratios:
                return self.ratios[key]
        return None


def own_runs(runs: Sequence[Run], count: Count) -> list[OwnRuns]:
    """Return what the profiled steps of `runs` say, together for each device."""
    of_device: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        record = run.record
        if record and record.ops and run.point and record.resolved and record.environment:
            of_device[record.environment.device.name].append(run)
    return [_of_device(name, group, count) for name, group in of_device.items()]


def _of_device(name: str, runs: Sequence[Run], count: Count) -> OwnRuns:
    took: defaultdict[tuple[str, str], float] = defaultdict(float)
    said: defaultdict[tuple[str, str], float] = defaultdict(float)
    rest_s = calls = 0.0
    modes: set[str] = set()
    for run in runs:
        record = run.record
        if not (record and record.ops and record.resolved and record.environment and run.point):
            continue
        mode, roof = record.resolved.math_mode, run.point.roof
        modes.add(mode)
        target = _measured(record.environment, mode, roof, record.record_id)
        ops = count(StepSpec.of(record.config, record.resolved)).ops
        for op, time_s in zip(ops, _op_times_s(ops, target), strict=True):
            for key in ((op.label, op.phase), (class_of(_timed(op, 0.0)), "")):
                said[key] += time_s
        # Profiling stretches a step on a processor, and not the kernels of a device.
        on_host = record.ops.device_busy_share is None
        timed = record.measurement
        stretch = timed.step_s / record.ops.step_time_s if timed and on_host else 1.0
        for measured in record.ops.ops:
            for key in ((measured.label, measured.phase or ""), (class_of(measured), "")):
                took[key] += stretch * measured.exclusive_s
        if on_host:
            rest_s += stretch * (record.ops.step_time_s - record.ops.exclusive_s)
            calls += sum(op.calls for op in ops)
    parts = {key: one / sum(took.values()) for key, one in took.items()}
    ratios = {
        key: math.log(took[key] / said[key]) * part / (part + _SLIGHT)
        for key, part in parts.items()
        if part and said.get(key)
    }
    names = tuple(run.name for run in runs)
    return OwnRuns(name, names, frozenset(modes), ratios, rest_s / calls if calls else None)


def _op_times_s(ops: Sequence[ListedOp], target: Target) -> Numbers:
    """Seconds of all calls of each op."""
    kernels = kernels_of(ops)
    each = kernel_times_s(kernels, target.chip, _shares_on(target)) * kernels.calls
    found: Numbers = np.bincount(kernels.op, each, len(ops)).astype(float)
    return found


@dataclass(frozen=True)
class Elsewhere:
    """A predicted step on a device, with how sure it is.

    `deviation` is of the logarithm of the time. `unproven` is the part of the time that no timing
    supports. `rests_on` are sentences.
    """

    target: Target
    config: RunConfig
    step: ListedStep
    account: StepAccount
    deviation: float
    unproven: float
    need_bytes: int
    rests_on: tuple[str, ...]
    cost: Cost | Unknown = field(default_factory=lambda: Unknown("no price was given"))

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.account.step_time_s

    @property
    def samples_per_s(self) -> float:
        """Samples a second."""
        return int(self.config.batch_size) / self.step_s

    def interval(self, level: int) -> tuple[float, float]:
        """Return the interval of samples/s, of 50 or 90 %."""
        factor = math.exp(shares()["quantiles"][f"{level}"] * self.deviation)
        return self.samples_per_s / factor, self.samples_per_s * factor

    def facts(self) -> dict[str, Any]:
        """Return the prediction for JSON."""
        (low_50, high_50), (low_90, high_90) = self.interval(50), self.interval(90)
        price = self.cost.price.row if self.cost else {}
        return {
            "on": self.target.name, "arch": self.config.arch,
            "batch_size": self.config.batch_size, "precision": self.config.precision,
            "math_mode": self.target.mode, rate_column(self.step.sample): self.samples_per_s,
            "low_50": low_50, "high_50": high_50, "low_90": low_90, "high_90": high_90,
            "deviation": self.deviation, "unproven_share": self.unproven,
            "roofs_are_measured": self.target.is_measured, **self.account.facts(),
            "memory_needed_bytes": self.need_bytes, "memory_bytes": self.target.memory_bytes,
            "cost_per_million_samples": self.cost.per_million_samples if self.cost else None,
            **price, "rests_on": [*self.rests_on],
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield it for a terminal."""
        what = f"{self.config.arch} {self.target.mode} batch {self.config.batch_size}"
        rate = f"{three_digits(self.samples_per_s)} {rate_unit(self.step.sample)}"
        likely, sure = (interval(*self.interval(level)) for level in (50, 90))
        yield f"{what} on {self.target.name}: {rate} (50 %: {likely}; 90 %: {sure})"
        yield f"    step: {three_digits(1e3 * self.step_s)} ms, not measured"
        for line in self.account.lines():
            yield f"    {line}"
        there = self.target.memory_bytes
        of = f"of {three_digits(there / 1e9)} GB" if there else "; the device's is not known"
        yield f"    memory: needs {three_digits(self.need_bytes / 1e9)} GB {of}"
        if self.cost:
            yield f"    cost: {self.cost} a million {self.step.sample}s ({self.cost.price})"
        for sentence in self.rests_on:
            yield f"    rests on {sentence}"


def predict_on(
    target: Target,
    config: RunConfig,
    count: Count,
    own: Sequence[OwnRuns] = (),
    prices: Prices | None = None,
) -> Elsewhere:
    """Predict a configuration's step on `target`.

    Raises `UserError` where memory does not hold it, and where ops without a basis carry over 20 %
    of its time.
    """
    spec = replace(StepSpec.of(config), math_mode=target.mode,
                   backend="cuda" if target.is_gpu else "cpu")  # fmt: skip
    step = count(spec)
    _check_memory(step, target, config)
    guess = _Guess(step.ops, target, own)
    device_s, host_s = guess.device_s, guess.host_s
    step_s = (device_s**3 + host_s**3) ** (1 / 3) if target.is_gpu else device_s + host_s
    timed = [_timed(op, time_s) for op, time_s in zip(step.ops, guess.times_s, strict=True)]
    account = account_of_times(timed, target.roof, step_s, on_host=not target.is_gpu)
    unproven = float(guess.times_s[guess.unproven].sum() / step_s)
    if unproven > MOST_UNPROVEN:
        sums: defaultdict[str, float] = defaultdict(float)
        for one, is_unproven in zip(timed, guess.unproven, strict=True):
            sums[class_of(one)] += one.time_s * is_unproven
        worst = max(sums, key=lambda name: sums[name])
        raise UserError(
            f"on={target.name!r}: no timing supports ops that carry {percent(unproven)} of the "
            f"step, most of it {worst}; {'' if own else 'give --records with '}a run of a model "
            "that has them, profiled on any device with known roofs, would"
        )
    made = Elsewhere(target, config, step, account, guess.deviation(step_s), unproven,
                     step.memory.total_bytes, tuple(guess.rests_on()))  # fmt: skip
    found = prices.cost_at([target.name], made.samples_per_s) if prices else made.cost
    return replace(made, cost=found)


def _check_memory(step: ListedStep, target: Target, config: RunConfig) -> None:
    need, there = step.memory.total_bytes, target.memory_bytes
    if there is None or need <= _USABLE_SHARE * there:
        return
    fixed = need - step.memory.activations_bytes
    each = step.memory.activations_bytes / int(config.batch_size)
    most = max(int((_USABLE_SHARE * there - fixed) // each), 0) if each else 0
    fits = f"at most a batch of {most} fits" if most else "no batch fits"
    raise UserError(
        f"batch_size={config.batch_size}: {config.arch} needs {three_digits(need / 1e9)} GB by "
        f"the cost model, {target.name} has {three_digits(there / 1e9)} GB; {fits}"
    )


def _timed(op: ListedOp, time_s: float) -> OpTime:
    """The op as a profile has one, of all its calls."""
    work = {name: op.calls * getattr(op, name) for name in (*WORK, "causal_skipped_flops")}
    return OpTime(label=op.label, op=op.op, phase=op.phase, calls=op.calls, time_s=time_s,
                  exclusive_s=time_s, missing={}, **work)  # fmt: skip


class _Guess:
    """The times of a step's ops, and what each is known from."""

    def __init__(self, ops: Sequence[ListedOp], target: Target, own: Sequence[OwnRuns]) -> None:
        self._target = target
        self._known: Mapping[str, Any] = shares()
        kernels = kernels_of(ops)
        at = kernels.op
        each = kernel_times_s(kernels, target.chip, _shares_on(target)) * kernels.calls
        self.times_s = np.bincount(at, each, len(ops))
        # An op of two kernels is of the kind of its last one.
        kinds = np.zeros(len(ops), dtype=int)
        kinds[at] = kernels.kind
        self._kinds = kinds
        self._own = next((one for one in own if one.device == target.name), None) or next(
            iter(sorted(own, key=lambda one: -len(one.runs))), None
        )
        self._is_same = bool(self._own and self._own.device == target.name)
        found = [self._own.ratio(op) if self._own else None for op in ops]
        self.corrected = np.array([one is not None for one in found])
        self._part = 1.0 if self._is_same else float(self._known["carried"])
        self.times_s *= np.exp([self._part * (one or 0.0) for one in found])
        self._calls = sum(op.calls for op in ops)
        without = kinds == KINDS.index(UNPROVEN) if target.is_gpu else np.ones(len(ops), dtype=bool)
        self.unproven = without & ~self.corrected

    @property
    def device_s(self) -> float:
        return float(self.times_s.sum())

    @property
    def host_s(self) -> float:
        """What the host needs for all calls, by the same machine's runs or by an H200's."""
        own = self._own.host_call_s if self._own and self._is_same else None
        if own is None:
            own = self._known["shares"]["host_call_s"] if self._target.is_gpu else 0.0
        return float(self._calls * own)

    def deviation(self, step_s: float) -> float:
        """Return the deviation of the logarithm of the step's time."""
        errors, target = self._known["errors"], self._target
        products = self._kinds < len(PRODUCTS)
        convolutions = products & (self._kinds >= len(PRODUCTS) - len(_CONVOLUTIONS))
        alone = self._kinds == KINDS.index("depthwise")
        classes = {"product": products & ~convolutions, "convolution": convolutions,
                   "depthwise": alone, "pass": ~products & ~alone & ~self.unproven,
                   UNPROVEN: self.unproven & ~products & ~alone}  # fmt: skip
        variance = errors["measured" if target.is_measured else "device"] ** 2
        left = math.sqrt(1 - self._part**2) if not self._is_same else errors["same_device"]
        for name, chosen in classes.items():
            error = errors[name]
            if target.is_gpu and name in ("product", "convolution") and target.mode != "fp32":
                error = max(error, errors["tensor"])
            elif target.is_gpu and name == "convolution" and target.is_newer:
                error = max(error, errors["newer_convolution"])
            for is_corrected, scale in ((False, 1.0), (True, left)):
                time_s = self.times_s[chosen & (self.corrected == is_corrected)].sum()
                variance += (scale * error * time_s / step_s) ** 2
        waiting = max(step_s - self.device_s, 0.0) / step_s
        return math.sqrt(variance + (errors["host"] * waiting) ** 2)

    def rests_on(self) -> Iterator[str]:
        """Yield what the prediction rests on, and what it lacks."""
        target = self._target
        yield target.rests_on
        if target.is_gpu:
            yield f"published op times ({self._known['source']})"
        if target.is_gpu and target.mode != "fp32":
            yield (
                f"few runs in {target.mode}: no published op time is of tensor cores, so their "
                "share is that of runs on three devices, and the interval is wider"
            )
        elif target.is_gpu and target.is_newer:
            yield (
                "two runs on an H200 for convolutions in fp32: published ones are of devices until "
                "2018, so the interval is wider"
            )
        if self._own:
            runs, part = len(self._own.runs), self.times_s[self.corrected].sum() / self.device_s
            yield (
                f"{runs} run{'s' * (runs > 1)} on {self._own.device}, for the kinds of ops that "
                f"take {percent(float(part))} of the time"
            )
        if self.unproven.any():
            part = float(self.times_s[self.unproven].sum() / self.device_s)
            yield f"no timing of ops that take {percent(part)} of the time"
