"""Statistics of one profile, derived from its record: the metrics that are logged and shown."""

from __future__ import annotations

from bench.records import CpuCounters, OpProfile, ProfileRecord
from bench.records.verdict.step_cost import StepCost, step_cost


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
