"""Statistics of one record, derived from its raw values: the metrics that are logged and shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.records import Complexity, Measurement, RunRecord


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the `percent` percentile, 1 to 99, by linear interpolation as NumPy's default."""
    if len(values) == 1:  # which Python takes from 3.13 on
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def iteration_statistics_ms(times_s: Sequence[float]) -> dict[str, float]:
    """Return mean, sample standard deviation and percentiles of iteration times, in ms.

    With a single iteration there is no deviation, and none is given.
    """
    times_ms = [seconds * 1e3 for seconds in times_s]
    found = {"iteration_time_ms_mean": statistics.fmean(times_ms)}
    if len(times_ms) > 1:
        found["iteration_time_ms_std"] = statistics.stdev(times_ms)
    for percent in (50, 95, 99):
        found[f"iteration_time_ms_p{percent}"] = percentile(times_ms, percent)
    return found


def data_wait_share(measurement: Measurement) -> float:
    """Return the share of the window that the host spent waiting for the next batch."""
    return sum(measurement.data_wait_s) / measurement.window_s


def steps(record: RunRecord) -> int:
    """Return the number of measured optimizer steps; one iteration is one step."""
    return len(record.measurement.iteration_times_s) if record.measurement else 0


def attained_flops_per_s(record: RunRecord) -> float | None:
    """Return algorithmic FLOP per second of the window, or None without a cost model.

    Of all devices together. The model counts one batch; an iteration holds `grad_accum_steps` of
    them on each device.
    """
    if record.measurement is None or record.complexity is None:
        return None
    batches = steps(record) * record.config.grad_accum_steps * record.config.world_size
    return record.complexity.step_flops * batches / record.measurement.window_s


def summary(record: RunRecord) -> dict[str, float]:
    """Return the metrics of `record` by their names in the schema; what is unknown is left out."""
    found: dict[str, float] = {}
    if record.resolved is not None:
        found["batch_size"] = record.resolved.batch_size
    if record.measurement is not None:
        found |= _of_measurement(record.measurement)
        # A loader's rate is no model's: by a name of its own nothing can mix them up.
        rate = "loader_images_per_s" if record.config.data_only else "throughput_images_per_s"
        found[rate] = record.measurement.throughput_images_per_s
    if record.complexity is not None:
        found |= _of_complexity(record.complexity)
    attained = attained_flops_per_s(record)
    if attained is not None:
        found["attained_gflops"] = attained / 1e9
    process = record.process
    if process is not None:
        found |= _known(
            real_s=process.real_s,
            user_s=process.user_s,
            system_s=process.system_s,
            max_rss_mb=_scaled(process.max_rss_bytes, 1e-6),
        )
    if record.telemetry is not None and record.telemetry.energy_j is not None:
        found["energy_j"] = record.telemetry.energy_j
        if record.measurement is not None:
            found["energy_j_per_image"] = record.telemetry.energy_j / record.measurement.images
    return found


def _of_measurement(measurement: Measurement) -> dict[str, float]:
    return {
        "window_s": measurement.window_s,
        "iterations": len(measurement.iteration_times_s),
        "data_wait_share": data_wait_share(measurement),
        **iteration_statistics_ms(measurement.iteration_times_s),
        **_known(
            peak_memory_mb=_scaled(measurement.peak_memory_allocated_bytes, 1e-6),
            compile_time_s=measurement.compile_time_s,
            communication_share=_communication_share(measurement),
        ),
    }


def _communication_share(measurement: Measurement) -> float | None:
    return None if measurement.ranks is None else measurement.ranks.communication_share


def _of_complexity(complexity: Complexity) -> dict[str, float]:
    return {
        "step_gflop": complexity.step_flops / 1e9,
        "step_gb_eager": complexity.eager_bytes / 1e9,
        "step_gb_fused": complexity.fused_bytes / 1e9,
        "intensity_min": complexity.intensity_min,
        "intensity_max": complexity.intensity_max,
    }


def _scaled(value: int | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _known(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
