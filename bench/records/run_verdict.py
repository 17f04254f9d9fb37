"""Whether the numbers of one run can be trusted, judged from that run alone.

What needs a roof (numbers above it, the bound) is judged in the analysis.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from bench.config import MIN_ITERATIONS
from bench.records import (
    CLOCK_SETTING,
    POWER_LIMIT,
    CeilingsRecord,
    Environment,
    Measurement,
    RunRecord,
    Telemetry,
    Verdict,
)
from bench.records.base import Found, Weight
from bench.records.metrics import data_wait_share

#: Sum of event times against the wall clock: a larger difference means that the window had gaps.
_EVENT_GAP = 0.02
_THROTTLED_SHARE = 0.05
_INPUT_BOUND_SHARE = 0.05
_OUTLIER_RATIO = 2.0
#: Of the window's median: more than neighbouring iterations of a busy machine differ.
_NOT_WARM = 1.25
#: Of the usable cores; the launcher's own sampling stays under 1 %.
_BUSY_HOST_SHARE = 0.05


def judge(record: RunRecord | CeilingsRecord) -> Verdict:
    """Return the findings about a run, or about how roofs were measured, and their gravest level.

    What was not measured to its end is invalid, whatever times it holds.
    """
    return Verdict.of(_findings(record))


def _findings(record: RunRecord | CeilingsRecord) -> Iterator[Found]:
    if record.outcome != "ok":
        yield record.outcome, "invalid", record.reason or record.outcome
    run = record if isinstance(record, RunRecord) else None
    if run is not None and run.measurement is not None:
        yield from _of_warm_up(run.measurement)
        yield from _of_window(run.measurement)
        if not run.config.data_only:
            yield from _of_training(run.measurement, run)
    if record.telemetry is not None:
        yield from of_telemetry(record.telemetry, record.environment)
    elif record.outcome == "ok":
        message = "its launcher had ended: nobody watched the machine while it measured"
        yield "unwatched", "suspect", message
        if run is not None and run.measurement is not None and run.environment is not None:
            cores = run.measurement.other_cpu_cores or 0.0
            yield from _of_host(run.environment, cores)
    if run is not None and run.resolved is not None and not run.config.data_only:
        note = run.resolved.precision_note(run.config.precision)
        if note is not None:
            code = "amp-in-fp32" if run.resolved.native_math else "emulated"
            yield code, "note", f"{run.config.precision}: {note}"
    if record.environment is not None:
        yield from _of_environment(record.environment)


def _of_environment(environment: Environment) -> Iterator[Found]:
    if environment.power_source == "battery":
        yield "battery", "suspect", "measured on battery power"
    blocking = (environment.variables or {}).get("CUDA_LAUNCH_BLOCKING", "0")
    if environment.device.backend == "cuda" and blocking != "0":
        told = f"CUDA_LAUNCH_BLOCKING={blocking}"
        yield "launch-blocking", "suspect", f"{told}: the host waited for every kernel"


def _of_warm_up(measurement: Measurement) -> Iterator[Found]:
    """A warm-up that was cut is a note, unless its last iteration was still slower than the rest.

    The first iteration is slower in any case: it reserves memory.
    """
    times = measurement.warmup_times_s
    if measurement.warmup_ended_early is None or not times:
        return
    message = f"warm-up ended after {measurement.warmup_ended_early}"
    times_slower = times[-1] / statistics.median(measurement.iteration_times_s)
    if times_slower > _NOT_WARM:
        message += (
            f"; its last iteration still took {times_slower:.1f} times the window's median: "
            "give a larger max_seconds"
        )
        yield "not-warm", "suspect", message
    else:
        yield "short-warm-up", "note", message


def _of_window(measurement: Measurement) -> Iterator[Found]:
    times = measurement.iteration_times_s
    if len(times) < MIN_ITERATIONS:
        message = f"only {len(times)} iterations: no statement about steady state"
        yield "few-iterations", "suspect", message
    drift = window_drift(times)
    if drift is not None and drift.is_drifting:
        change = f"{100 * abs(drift.change):.0f} % {'slower' if drift.change > 0 else 'faster'}"
        yield "drift", "suspect", f"the last third of the window ran {change} than the first"
    slow_s = _OUTLIER_RATIO * statistics.median(times)
    if slow := sum(time > slow_s for time in times):
        yield "outliers", "note", f"{slow} of {len(times)} iterations took over twice the median"
    gap = 1 - sum(times) / measurement.window_s
    if abs(gap) > _EVENT_GAP:
        message = f"iteration times leave {100 * gap:.1f} % of the window unexplained"
        yield "window-gap", "suspect", message


def _of_training(measurement: Measurement, run: RunRecord) -> Iterator[Found]:
    """Findings that need a model in the step."""
    if run.complexity is None and (why := run.missing.get("complexity")):
        why = why.removeprefix("UserError: ")
        yield "uncounted-work", "note", f"its FLOP and bytes are not known: {why}"
    share = data_wait_share(measurement)
    if share > _INPUT_BOUND_SHARE:
        yield "input-bound", "note", f"{100 * share:.0f} % of the window was spent waiting for data"
    if changed := measurement.changed_switches:
        message = f"the model's file set {', '.join(changed)} after the step was set up"
        yield "changed-switches", "suspect", message
    if syncs := measurement.hidden_syncs:
        yield "hidden-syncs", "note", f"the step makes the host wait {syncs} times an iteration"
    if measurement.last_loss is None and measurement.first_loss is None:
        yield "loss-not-finite", "suspect", "the loss was not a finite number"
    elif measurement.last_loss is None and run.outcome == "ok":
        message = "the loss was a finite number at first and not at the end: NaN takes less power"
        yield "loss-not-finite", "suspect", message


def of_telemetry(telemetry: Telemetry, environment: Environment | None) -> Iterator[Found]:
    """Yield what else ran on the machine, and what slowed the device."""
    if environment is not None:
        names = ("other_cpu_percent", "stolen_cpu_percent")
        others, stolen = ((telemetry.mean(name) or 0.0) / 100 for name in names)
        yield from _of_host(environment, others, stolen)
    for reason, share in (telemetry.throttle_share or {}).items():
        if share > _THROTTLED_SHARE and reason == POWER_LIMIT:
            yield "power-limited", "note", _at_power_limit(share, telemetry, environment)
        elif share > _THROTTLED_SHARE and reason == CLOCK_SETTING:
            message = f"clocks held by a setting in {100 * share:.0f} % of the samples"
            yield "clock-setting", "note", message + _sm_clock(telemetry, environment)
        elif share > _THROTTLED_SHARE:
            yield "throttled", "suspect", f"{reason} in {100 * share:.0f} % of the samples"
    if foreign := telemetry.foreign_processes:
        yield "foreign-process", "suspect", f"others used the device: {', '.join(foreign[:5])}"


def _of_host(environment: Environment, others: float, stolen: float = 0.0) -> Iterator[Found]:
    """Judge the cores that others used: a CPU's step is slower for it, a GPU's if it waits."""
    usable, on_cpu = environment.cpu_cores_usable, environment.device.backend == "cpu"
    level: Weight = "suspect" if on_cpu else "note"
    more = "" if on_cpu else "; a step that waits for launches or data is slower for it"
    for code, cores, what in (
        ("busy-host", others, "other processes used {} cores during the window"),
        ("stolen-time", stolen, "this virtual machine's host gave others {} cores"),
    ):
        if cores > _BUSY_HOST_SHARE * usable:
            message = what.format(f"{cores:.2g}")
            yield code, level, f"{message}; this run could use {usable}{more}"


def _at_power_limit(share: float, telemetry: Telemetry, environment: Environment | None) -> str:
    device = environment.device if environment is not None else None
    limit_w = device.power_limit_w if device is not None else None
    limit = "its power limit" if limit_w is None else f"its power limit of {limit_w:.0f} W"
    text = f"at {limit} in {100 * share:.0f} % of the samples"
    text += _sm_clock(telemetry, environment)
    slowed = (telemetry.slowed_share or {}).get("power")
    if slowed is not None:
        text += f", for {100 * slowed:.0f} % of the time below its application clock"
    return text


def _sm_clock(telemetry: Telemetry, environment: Environment | None) -> str:
    """`, SM clock 1410 MHz on average of 1980 at most`, as far as it is known."""
    clock_mhz = telemetry.mean("gpu_sm_clock_mhz")
    if clock_mhz is None:
        return ""
    most_mhz = environment.device.max_clock_mhz if environment is not None else None
    most = "" if most_mhz is None else f" of {most_mhz:.0f} at most"
    return f", SM clock {clock_mhz:.0f} MHz on average{most}"


#: Of the mean. A drift of 5 % between the thirds moves the window's mean by about 2.5 %, which is
#: more than the 2 % that a comparison takes for no change.
DRIFT = 0.05
#: One window in a hundred may be called drifting by chance.
_LEVEL = 0.01
_MIN_ITERATIONS = 15
#: A correlation above this leaves so few independent values that no interval means anything.
_MAX_CORRELATION = 0.95


@dataclass(frozen=True)
class Drift:
    """The relative change of the mean from the first to the last third.

    `p_value` is two-sided, of no change. `changed_at` is the iteration after which the times
    changed most: that of the largest cumulative sum of deviations.
    """

    change: float
    p_value: float
    changed_at: int

    @property
    def is_drifting(self) -> bool:
        """Whether the change is over 5 % and not by chance (p < 0.01)."""
        return abs(self.change) > DRIFT and self.p_value < _LEVEL


def window_drift(times_s: Sequence[float]) -> Drift | None:
    """Compare the first third of a window with the last; None for fewer than 15 iterations.

    A t-test that allows for correlated iterations: each third counts as n (1 - r) / (1 + r) of
    them, with the correlation r of neighbours. A single slow iteration widens the test instead of
    failing it.
    """
    if len(times_s) < _MIN_ITERATIONS:
        return None
    size = len(times_s) // 3
    thirds = (times_s[:size], times_s[size:-size], times_s[-size:])
    first, _, last = (statistics.fmean(third) for third in thirds)
    # Taken after the thirds' own means, so that a drift does not pass for correlation.
    residuals = [_deviations(third) for third in thirds]
    correlation = lag_one_correlation([one for third in residuals for one in third])
    independent = max(size * (1 - correlation) / (1 + correlation), 2.0)
    squares = math.fsum(one**2 for third in (residuals[0], residuals[-1]) for one in third)
    variance = squares / (2 * (size - 1))
    # A third's own mean follows its iterations, so its variance comes out too small by this.
    variance /= max(1 - 1 / independent, 0.5)
    p_value = 1.0 if first == last else 0.0
    if variance > 0:
        distance = abs(last - first) / math.sqrt(2 * variance / independent)
        p_value = _two_sided_p(distance, 2 * (independent - 1))
    sums = list(accumulate(_deviations(times_s)))[:-1]
    changed_at = max(range(len(sums)), key=lambda place: abs(sums[place])) + 1
    return Drift(last / first - 1, p_value, changed_at)


def lag_one_correlation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the next, 0 to 0.95.

    The estimate is biased low by about (1 + 3 r) / n (Marriott and Pope, Biometrika 41, 1954),
    which is put back. A negative one counts as none, since it would make intervals narrower.
    """
    deviations = _deviations(values)
    spread = math.fsum(one**2 for one in deviations)
    if len(deviations) < 3 or spread == 0:
        return 0.0
    raw = math.fsum(one * following for one, following in pairwise(deviations)) / spread
    return min(max(raw + (1 + 3 * raw) / len(deviations), 0.0), _MAX_CORRELATION)


def _deviations(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [value - mean for value in values]


def _two_sided_p(distance: float, degrees: float) -> float:
    """Return Student's two-sided p-value; at p = 0.01 and 4 degrees or more good to 5 %.

    Wallace, Annals of Mathematical Statistics 30, 1959: the normal deviate of the same tail.
    """
    deviate = math.sqrt(degrees * math.log1p(distance**2 / degrees))
    deviate *= (8 * degrees + 1) / (8 * degrees + 3)
    return 2 * statistics.NormalDist().cdf(-deviate)
