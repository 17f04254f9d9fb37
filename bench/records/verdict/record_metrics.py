"""Statistics of one record, derived from its raw values: the metrics that are logged and shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.records import Complexity, CpuCounters, Measurement, OpProfile, ProfileRecord, RunRecord


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
        # A loader's rate has another name, so that it is not taken for a model's.
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


def _known(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class StepCost:
    """Work of one step: algorithmic FLOP, and bytes by the model's three counts."""

    flops: int
    fused_bytes: int
    eager_bytes: int
    compulsory_bytes: int


def step_cost(complexity: Complexity, batches: int) -> StepCost:
    """Return the cost of `batches` forward and backward passes and one optimizer step.

    The compulsory bytes are those of one batch, however many there are: a floor that stays one.
    """
    return StepCost(
        flops=batches * complexity.step_flops,
        fused_bytes=complexity.fused_bytes + (batches - 1) * _per_batch(complexity, "fused_bytes"),
        eager_bytes=complexity.eager_bytes + (batches - 1) * _per_batch(complexity, "eager_bytes"),
        compulsory_bytes=complexity.compulsory_bytes,
    )


def _per_batch(complexity: Complexity, field: str) -> int:
    return sum(getattr(op, field) for op in complexity.ops if op.phase != "optimizer")


def profiled_step_cost(record: ProfileRecord) -> StepCost | None:
    """Return what the cost model says of the profiled step, or None without a model."""
    if record.complexity is None:
        return None
    return step_cost(record.complexity, record.config.grad_accum_steps)


def executed_flops(record: ProfileRecord) -> float | None:
    """Return FLOP that one step executed, by the device's own counters, or None.

    Padding and recomputation are in it, so it is not the algorithmic FLOP.
    """
    if record.counters is not None:
        return record.counters.flops
    cpu = record.cpu_counters
    if cpu is None or cpu.flops is None or not cpu.iterations:
        return None
    return cpu.flops / cpu.iterations


def matched_share(ops: OpProfile) -> float | None:
    """Return the share of the ops' time whose work the cost model knows; None without time."""
    if not ops.ops_time_s:
        return None
    return sum(op.time_s for op in ops.ops if op.flops is not None) / ops.ops_time_s


def profile_summary(record: ProfileRecord) -> dict[str, float]:
    """Return the metrics of `record` by their names in the schema; what is unknown is left out.

    `intensity_counted` is algorithmic FLOP per counted byte, `traffic_amplification` counted bytes
    over the least that a fused step would move. A processor's memory controllers count the whole
    machine, so they give neither.
    """
    found: dict[str, float | None] = {"executed_gflop": _scaled(executed_flops(record), 1e-9)}
    cost = profiled_step_cost(record)
    counted = record.counters.dram_bytes if record.counters else None
    found["counted_dram_gb"] = _scaled(counted, 1e-9)
    if cost is not None and counted:
        found["intensity_counted"] = cost.flops / counted
        found["traffic_amplification"] = _ratio(counted, cost.fused_bytes)
    if record.ops is not None:
        found["device_busy_share"] = record.ops.device_busy_share
        found["ops_matched_share"] = matched_share(record.ops)
    if record.cpu_counters is not None:
        found |= _of_cpu(record.cpu_counters)
    return {name: value for name, value in found.items() if value is not None}


def _of_cpu(counters: CpuCounters) -> dict[str, float | None]:
    return {
        "ipc": counters.ipc,
        "cpi": counters.cpi,
        "cache_miss_share": _ratio(counters.cache_misses, counters.cache_references),
        "branch_miss_share": _ratio(counters.branch_misses, counters.branches),
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
