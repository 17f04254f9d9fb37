"""Whether the numbers of one run can be trusted, judged from that run alone.

What needs a roof (numbers above it, the bound) is judged in the analysis.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.records import (
    CeilingsRecord,
    Environment,
    Finding,
    Measurement,
    RunRecord,
    Telemetry,
    Verdict,
)
from bench.records.verdict.drift import window_drift
from bench.records.verdict.record_metrics import data_wait_share

#: Windows shorter than this say little about steady state.
_FEW_ITERATIONS = 5
#: Sum of event times against the wall clock: a larger difference means that the window had gaps.
_EVENT_GAP = 0.02
_THROTTLED_SHARE = 0.05
_INPUT_BOUND_SHARE = 0.05
_OUTLIER_RATIO = 2.0
#: Of the usable cores, on a CPU backend; the launcher's own sampling stays under 1 %.
_BUSY_HOST_SHARE = 0.05


def judge(record: RunRecord) -> Verdict:
    """Return the findings of `record` and the gravest of their levels.

    A run that was not measured to its end is invalid, whatever times it holds.
    """
    return Verdict.of(_findings(record))


def judge_ceilings(record: CeilingsRecord) -> Verdict:
    """Return the findings about how roofs were measured, and the gravest of their levels."""
    return Verdict.of(_of_ceilings(record))


def _of_ceilings(record: CeilingsRecord) -> Iterator[Finding]:
    if record.outcome != "ok":
        yield Finding(code=record.outcome, level="invalid", message=record.reason or record.outcome)
    if record.telemetry is not None:
        yield from _of_telemetry(record.telemetry, record.environment)
    if record.environment is not None:
        yield from _of_environment(record.environment)


def _findings(record: RunRecord) -> Iterator[Finding]:
    if record.outcome != "ok":
        yield Finding(code=record.outcome, level="invalid", message=record.reason or record.outcome)
    if record.measurement is not None:
        yield from _of_window(record.measurement)
        if not record.config.data_only:
            yield from _of_training(record.measurement)
    if record.telemetry is not None:
        yield from _of_telemetry(record.telemetry, record.environment)
    resolved = None if record.config.data_only else record.resolved
    if resolved is not None and not resolved.native_math:
        mode = resolved.math_mode
        yield Finding(
            code="emulated", level="note", message=f"this device computes {mode} by emulation"
        )
    if record.environment is not None:
        yield from _of_environment(record.environment)


def _of_window(measurement: Measurement) -> Iterator[Finding]:
    times = measurement.iteration_times_s
    if len(times) < _FEW_ITERATIONS:
        yield Finding(
            code="few-iterations",
            level="suspect",
            message=f"only {len(times)} iterations: no statement about steady state",
        )
    drift = window_drift(times)
    if drift is not None and drift.is_drifting:
        word = "slower" if drift.change > 0 else "faster"
        yield Finding(
            code="drift",
            level="suspect",
            message=f"the last third of the window ran {abs(drift.change):.0%} {word} "
            "than the first",
        )
    slow_s = _OUTLIER_RATIO * statistics.median(times)
    slow = sum(time > slow_s for time in times)
    if slow:
        yield Finding(
            code="outliers",
            level="note",
            message=f"{slow} of {len(times)} iterations took over twice the median",
        )
    gap = 1 - sum(times) / measurement.window_s
    if abs(gap) > _EVENT_GAP:
        yield Finding(
            code="window-gap",
            level="suspect",
            message=f"iteration times leave {gap:.1%} of the window unexplained",
        )


def _of_training(measurement: Measurement) -> Iterator[Finding]:
    """Findings that need a model in the step."""
    share = data_wait_share(measurement)
    if share > _INPUT_BOUND_SHARE:
        yield Finding(
            code="input-bound",
            level="note",
            message=f"{share:.0%} of the window was spent waiting for data",
        )
    if measurement.hidden_syncs:
        yield Finding(
            code="hidden-syncs",
            level="note",
            message=f"the step makes the host wait {measurement.hidden_syncs} times an iteration",
        )
    if measurement.last_loss is None and measurement.first_loss is None:
        yield Finding(
            code="loss-not-finite", level="suspect", message="the loss was not a finite number"
        )


def _of_environment(environment: Environment) -> Iterator[Finding]:
    if environment.power_source == "battery":
        yield Finding(code="battery", level="suspect", message="measured on battery power")


def _of_telemetry(telemetry: Telemetry, environment: Environment | None) -> Iterator[Finding]:
    others = _others_share(telemetry, environment)
    if others is not None and others > _BUSY_HOST_SHARE:
        yield Finding(
            code="busy-host",
            level="suspect",
            message=f"other processes used {others:.0%} of the processor during the window",
        )
    for reason, share in (telemetry.throttle_share or {}).items():
        if share > _THROTTLED_SHARE:
            yield Finding(
                code="throttled",
                level="suspect",
                message=f"{reason} in {share:.0%} of the samples",
            )
    if telemetry.foreign_processes:
        yield Finding(
            code="foreign-process",
            level="suspect",
            message=f"others used the device: {', '.join(telemetry.foreign_processes[:5])}",
        )


def _others_share(telemetry: Telemetry, environment: Environment | None) -> float | None:
    """Mean share of the usable cores that other processes took from a CPU run, if it is known."""
    if environment is None or environment.device.backend != "cpu":
        return None
    series = {one.name: one.values for one in telemetry.series}
    values = series.get("other_cpu_percent", ())
    return statistics.fmean(values) / (100 * environment.cpu_cores_usable) if values else None
