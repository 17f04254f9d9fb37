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
    Finding,
    Measurement,
    ResolvedConfig,
    RunRecord,
    Telemetry,
    Verdict,
)
from bench.records.base import Weight
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


def _findings(record: RunRecord | CeilingsRecord) -> Iterator[Finding]:
    if record.outcome != "ok":
        yield Finding.of(record.outcome, reason=record.reason or record.outcome)
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
        yield Finding.of("unwatched", why=why)
        if run is not None and run.measurement is not None and run.environment is not None:
            yield from _of_host(run.environment, run.measurement.other_cpu_cores or 0.0)
    if run is not None and run.resolved is not None and not run.config.data_only:
        yield from of_precision(run.resolved, run.config.precision)
    if record.environment is not None:
        yield from _of_environment(record.environment)


def of_precision(resolved: ResolvedConfig, asked: str) -> Iterator[Finding]:
    """Yield how a run departs from the precision that was asked for."""
    if (code := resolved.departure(asked)) is not None:
        device = "processor" if resolved.backend == "cpu" else "device"
        yield Finding.of(code, precision=asked, device=device, math_mode=resolved.math_mode)


def _of_environment(environment: Environment) -> Iterator[Finding]:
    if environment.power_source == "battery":
        yield Finding.of("battery")
    blocking = (environment.variables or {}).get("CUDA_LAUNCH_BLOCKING", "0")
    if environment.device.backend == "cuda" and blocking != "0":
        yield Finding.of("launch-blocking", value=blocking)


def _of_warm_up(measurement: Measurement) -> Iterator[Finding]:
    """A warm-up that was cut is a note, unless the window's first third is slower than the rest."""
    if (early := measurement.warmup_ended_early) is None:
        return
    times = measurement.steady_times_s
    size = max(3, len(times) // 3)
    alike = measurement.iteration_samples is None
    if alike and len(times) > size and not is_warm(measurement.warmup_times_s[1:]):
        slower = min(times[:size]) / statistics.median(times[size:])
        if slower > _NOT_WARM:
            yield Finding.of("not-warm", early=early, iterations=size, times=slower)
            return
    yield Finding.of("short-warm-up", early=early)


def _of_window(measurement: Measurement, telemetry: Telemetry | None) -> Iterator[Finding]:
    times, sizes = measurement.iteration_times_s, measurement.iteration_samples
    if sizes is not None:
        yield Finding.of("sizes-differ", least=min(sizes), most=max(sizes))
        return
    if len(times) < MIN_ITERATIONS:
        yield Finding.of("few-iterations", iterations=len(times))
    yield from _of_steadiness(measurement, telemetry)
    slow_s = _OUTLIER_RATIO * measurement.pace_s
    if slow := sum(time > slow_s for time in times):
        yield Finding.of("outliers", slow=slow, iterations=len(times))


def _of_steadiness(measurement: Measurement, telemetry: Telemetry | None) -> Iterator[Finding]:
    """The class of the window, as a drift or a note, and its two rates where they differ."""
    times, window = measurement.iteration_times_s, window_class(measurement.iteration_times_s)
    code = "drift" if window.drift is not None else window.kind.replace(" ", "-")
    if code == "drift" or (code != "flat" and len(times) >= MIN_ITERATIONS):
        yield Finding.of(
            code,
            kind=window.kind,
            iterations=len(times),
            after=window.after,
            before_s=window.before_s,
            after_s=window.after_s,
            moved=_moved(telemetry, sum(times[: window.after])),
            cut=measurement.settled_after or None,
        )
    if measurement.is_disturbed:
        yield Finding.of(
            "disturbed",
            samples_per_s=measurement.throughput_samples_per_s,
            pace_samples_per_s=measurement.pace_samples_per_s,
            causes=_disturbance(measurement, telemetry),
        )


#: Series that may move with a window's level; in percent of a core, those that others used.
_USES = ("other_cpu_percent", "stolen_cpu_percent")
_CLOCKS = ("gpu_sm_clock_mhz", "cpu_frequency_mhz")
_MOVES = (*_USES, *_CLOCKS, "gpu_temperature_c", "cpu_temperature_c")
_MOVED, _USED_PERCENT = 0.03, 5.0


def _moved(telemetry: Telemetry | None, at_s: float) -> str | None:
    """`gpu_sm_clock_mhz from 1980 to 1845`: what was otherwise before `at_s` of the window."""
    moved = []
    for series in telemetry.series if telemetry else ():
        samples = list(zip(series.times_s, series.values, strict=True))
        earlier = [value for time_s, value in samples if time_s < at_s]
        later = [value for time_s, value in samples if time_s >= at_s]
        if series.name not in _MOVES or not earlier or not later:
            continue
        before, after = statistics.median(earlier), statistics.median(later)
        if abs(after - before) > (_USED_PERCENT if series.name in _USES else _MOVED * before):
            moved.append(f"{series.name} from {before:.0f} to {after:.0f}")
    return ", ".join(moved) or None


def _disturbance(measurement: Measurement, telemetry: Telemetry | None) -> str:
    """`other_cpu_percent of 120, SwThermal`, as far as causes are known."""
    causes = []
    for series in telemetry.series if telemetry else ():
        lowest, mean = min(series.values, default=0.0), statistics.fmean(series.values or (0.0,))
        if series.name in _USES and mean > _USED_PERCENT:
            causes.append(f"{series.name} of {mean:.0f}")
        elif series.name in _CLOCKS and lowest < (1 - _THROTTLED_SHARE) * mean:
            causes.append(f"{series.name} of {lowest:.0f} at times, {mean:.0f} on average")
    if telemetry and telemetry.foreign_processes:
        causes.append("other processes on the device")
    throttled = (telemetry.throttle_share or {}) if telemetry else {}
    chosen = (POWER_LIMIT, CLOCK_SETTING)
    causes += [name for name in throttled if name not in chosen and throttled[name] > 0]
    lost_s = (measurement.mean_step_s - measurement.pace_s) * len(measurement.steady_times_s)
    collected_s = measurement.garbage_collections_s or 0.0
    if collected_s > lost_s / 2:
        causes.append(f"Python's garbage collection ({collected_s:.2g} s)")
    return ", ".join(causes) or "what is not known"


def _of_training(measurement: Measurement, run: RunRecord) -> Iterator[Finding]:
    if run.complexity is None and (why := run.missing.get("complexity")):
        yield Finding.of("uncounted-work", why=why.removeprefix("UserError: "))
    left = run.complexity.fp32_share if run.complexity else 0.0
    if left >= LEAST_IN_FP32:
        yield Finding.of("products-in-fp32", percent=100 * left)
    share = data_wait_share(measurement, run.ops)
    if share is not None and share > _INPUT_BOUND_SHARE:
        yield Finding.of("input-bound", percent=100 * share)
    if changed := measurement.changed_switches:
        file = "script" if run.script else "model's file"
        yield Finding.of("changed-switches", file=file, switches=", ".join(changed))
    if measurement.hidden_syncs:
        yield Finding.of("hidden-syncs", times=measurement.hidden_syncs)
    if run.script:
        if (ranks := run.config.world_size) > 1:
            yield Finding.of("one-rank", ranks=ranks)
        return  # its loss is its own
    if measurement.last_loss is None and measurement.first_loss is None:
        yield Finding.of("loss-not-finite", where="beginning")
    elif measurement.last_loss is None and run.outcome == "ok":
        yield Finding.of("loss-not-finite", where="end")


def of_telemetry(telemetry: Telemetry, environment: Environment | None) -> Iterator[Finding]:
    """Yield what else ran on the machine, and what slowed the device."""
    if environment is not None:
        others, stolen = ((telemetry.mean(name) or 0.0) / 100 for name in _USES)
        yield from _of_host(environment, others, stolen)
    device = environment.device if environment is not None else None
    clocks_mhz = {
        "clock_mhz": telemetry.mean("gpu_sm_clock_mhz"),
        "most_mhz": device.max_clock_mhz if device else None,
    }
    slowed_share = (telemetry.slowed_share or {}).get("power")
    for reason, share in (telemetry.throttle_share or {}).items():
        percent = 100 * share
        if share > _THROTTLED_SHARE and reason == POWER_LIMIT:
            yield Finding.of(
                "power-limited",
                percent=percent,
                limit_w=device.power_limit_w if device else None,
                slowed_percent=None if slowed_share is None else 100 * slowed_share,
                **clocks_mhz,
            )
        elif share > _THROTTLED_SHARE and reason == CLOCK_SETTING:
            yield Finding.of("clock-setting", percent=percent, **clocks_mhz)
        elif share > _THROTTLED_SHARE:
            yield Finding.of("throttled", reason=reason, percent=percent)
    if foreign := telemetry.foreign_processes:
        yield Finding.of("foreign-process", processes=", ".join(foreign[:5]))


def _of_host(environment: Environment, others: float, stolen: float = 0.0) -> Iterator[Finding]:
    """Judge the cores that others used: a CPU's step is slower for it, a GPU's if it waits."""
    usable = environment.cpu_cores_usable
    for code, cores in (("busy-host", others), ("stolen-time", stolen)):
        if cores > _BUSY_HOST_SHARE * usable:
            level: Weight | None = None if environment.device.backend == "cpu" else "note"
            yield Finding.of(code, level, cores=cores, usable=usable)
