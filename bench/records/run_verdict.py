"""Whether the numbers of one run can be trusted, judged from that run alone.

What needs a roof (numbers above it, the bound) is judged in the analysis.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

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
from bench.records.complexity import LEAST_IN_FP32
from bench.records.metrics import data_wait_share
from bench.statistics.steady_state import is_warm, window_class

_THROTTLED_SHARE = 0.05
_INPUT_BOUND_SHARE = 0.05
_OUTLIER_RATIO = 2.0
#: Of the rest of the window: more than neighbouring iterations of a busy machine differ.
_NOT_WARM = 1.2
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
        yield from _of_window(run.measurement, run.telemetry)
        yield from run.contradictions()
        if not run.config.data_only:
            yield from _of_training(run.measurement, run)
    if record.telemetry is not None:
        yield from of_telemetry(record.telemetry, record.environment)
    elif record.outcome == "ok":
        why = record.missing.get("telemetry", "its launcher had ended")
        message = f"nobody watched the machine while it measured: {why}"
        yield "unwatched", "suspect", message
        if run is not None and run.measurement is not None and run.environment is not None:
            cores = run.measurement.other_cpu_cores or 0.0
            yield from _of_host(run.environment, cores)
    if run is not None and run.resolved is not None and not run.config.data_only:
        precision = run.config.precision
        for code, text in filter(None, [run.resolved.precision_note(precision)]):
            yield code, "note", f"{precision}: {text}"
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
    """A warm-up that was cut is a note, unless the window's first third is slower than the rest."""
    if measurement.warmup_ended_early is None:
        return
    message = f"warm-up ended after {measurement.warmup_ended_early}"
    times = measurement.steady_times_s
    size = max(3, len(times) // 3)
    alike = measurement.iteration_samples is None
    if alike and len(times) > size and not is_warm(measurement.warmup_times_s[1:]):
        slower = min(times[:size]) / statistics.median(times[size:])
        if slower > _NOT_WARM:
            message += (
                f"; the first {size} iterations of the window still took {slower:.1f} times as "
                "long as the rest: give a larger max_seconds"
            )
            yield "not-warm", "suspect", message
            return
    yield "short-warm-up", "note", message


def _of_window(measurement: Measurement, telemetry: Telemetry | None) -> Iterator[Found]:
    times, sizes = measurement.iteration_times_s, measurement.iteration_samples
    if sizes is not None:
        message = f"steps differ in size ({min(sizes)} to {max(sizes)} samples, or samples of "
        message += "several sizes): rates are sums over the window, and no drift is judged"
        yield "sizes-differ", "note", message
        return
    if len(times) < MIN_ITERATIONS:
        message = f"only {len(times)} iterations: no statement about steady state"
        yield "few-iterations", "suspect", message
    yield from _of_steadiness(measurement, telemetry)
    slow_s = _OUTLIER_RATIO * measurement.pace_s
    if slow := sum(time > slow_s for time in times):
        yield "outliers", "note", f"{slow} of {len(times)} iterations took over twice the median"


def _of_steadiness(measurement: Measurement, telemetry: Telemetry | None) -> Iterator[Found]:
    """The class of the window in words, a drift or a note, and its two rates where they differ."""
    times, found = measurement.iteration_times_s, window_class(measurement.iteration_times_s)
    percent = f"{100 * abs(found.change):.0f} %"
    levels = f"{found.before_s:.3g} s -> {found.after_s:.3g} s"
    moved = _moved(telemetry, sum(times[: found.after]))
    words = {
        "unproven": f"{len(times)} iterations are too few to show a drift",
        "settles": f"settles only after iteration {found.after}: {levels}{moved}",
        "slows down": f"slows down after iteration {found.after} by {percent}{moved}",
        "never steady": f"never steady: levels {percent} apart, the first until iteration "
        f"{found.after}{moved}",
    }
    if measurement.settled_after:
        words["settles"] = f"settled after {found.after} iterations: {levels}; no rate holds these"
    if found.drift is not None:
        yield "drift", "suspect", words[found.kind]
    elif found.kind != "flat" and len(times) >= MIN_ITERATIONS:
        yield found.kind.replace(" ", "-"), "note", words[found.kind]
    if measurement.is_disturbed:
        both = measurement.throughput_samples_per_s, measurement.pace_samples_per_s
        rates = "{:.4g} samples/s, undisturbed {:.4g}".format(*both)
        yield "disturbed", "suspect", f"{rates}{_disturbance(measurement, telemetry)}"


#: What may move with a window's level: words and unit by the telemetry's names.
_MOVES = {
    "gpu_sm_clock_mhz": ("the clock", "MHz"),
    "cpu_frequency_mhz": ("the clock", "MHz"),
    "gpu_temperature_c": ("the temperature", "°C"),
    "cpu_temperature_c": ("the temperature", "°C"),
    "other_cpu_percent": ("other programs' use of the CPU", "%"),
    "stolen_cpu_percent": ("other guests' use of the CPU", "%"),
}
_MOVED, _USED_PERCENT = 0.03, 5.0


def _moved(telemetry: Telemetry | None, at_s: float) -> str:
    """`: the clock fell from 1980 to 1845 MHz`: what was otherwise before `at_s` of the window."""
    found = []
    for one in telemetry.series if telemetry else ():
        pairs = list(zip(one.times_s, one.values, strict=True))
        sides = [[value for time_s, value in pairs if (time_s < at_s) is e] for e in (True, False)]
        if one.name not in _MOVES or not all(sides):
            continue
        (words, unit), (before, after) = _MOVES[one.name], map(statistics.median, sides)
        if abs(after - before) > (_USED_PERCENT if unit == "%" else _MOVED * before):
            verb = "fell" if after < before else "rose"
            found.append(f"{words} {verb} from {before:.0f} to {after:.0f} {unit}")
    return f": {', '.join(found)}" if found else ""


def _disturbance(measurement: Measurement, telemetry: Telemetry | None) -> str:
    """`: by other processes (1.2 cores), SwThermal`, as far as causes are known."""
    found = []
    for one in (one for one in (telemetry.series if telemetry else ()) if one.values):
        lowest, mean = min(one.values), statistics.fmean(one.values)
        if one.name.startswith(("other_cpu", "stolen_cpu")) and mean > _USED_PERCENT:
            who = "other processes" if one.name.startswith("other") else "other guests of its host"
            found.append(f"{who} ({mean / 100:.2g} cores)")
        elif one.name.endswith("_mhz") and lowest < (1 - _THROTTLED_SHARE) * mean:
            found.append(f"a clock of {lowest:.0f} MHz at times, {mean:.0f} MHz on average")
    if telemetry and telemetry.foreign_processes:
        found.append("other processes on the device")
    throttled = (telemetry.throttle_share or {}) if telemetry else {}
    chosen = (POWER_LIMIT, CLOCK_SETTING)
    found += [name for name in throttled if name not in chosen and throttled[name] > 0]
    lost_s = (measurement.mean_step_s - measurement.pace_s) * len(measurement.steady_times_s)
    collected_s = measurement.garbage_collections_s or 0.0
    if collected_s > lost_s / 2:
        found.append(f"Python's garbage collection ({collected_s:.2g} s)")
    return f": by {', '.join(found)}" if found else "; by what is not known"


def _of_training(measurement: Measurement, run: RunRecord) -> Iterator[Found]:
    if run.complexity is None and (why := run.missing.get("complexity")):
        why = why.removeprefix("UserError: ")
        yield "uncounted-work", "note", f"its FLOP and bytes are not known: {why}"
    left = run.complexity.fp32_share if run.complexity else 0.0
    if left >= LEAST_IN_FP32:
        message = f"amp leaves {100 * left:.0f} % of the FLOP of its products in fp32"
        yield "products-in-fp32", "note", message
    share = data_wait_share(measurement, run.ops)
    if share is not None and share > _INPUT_BOUND_SHARE:
        yield "input-bound", "note", f"{100 * share:.0f} % of the window was spent waiting for data"
    if changed := measurement.changed_switches:
        who = "script" if run.script else "model's file"
        message = f"the {who} set {', '.join(changed)} after the step was set up"
        yield "changed-switches", "suspect", message
    if syncs := measurement.hidden_syncs:
        yield "hidden-syncs", "note", f"the step makes the host wait {syncs} times an iteration"
    if run.script:
        if (ranks := run.config.world_size) > 1:
            yield "one-rank", "note", f"rank 0 of {ranks}: its rate is that of {ranks} alike"
        return  # its loss is its own
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
