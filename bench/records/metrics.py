"""Statistics of one record, derived from its raw values: the metrics that are logged and shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from bench.config import ResolvedConfig, RunConfig, energy_metric, rate_metric
from bench.records import (
    Complexity,
    DistributedFigures,
    ImportedRecord,
    Measurement,
    OpProfile,
    ProfileRecord,
    Removal,
    RunRecord,
    TraceRecord,
)
from bench.records.base import ratio
from bench.statistics.steady_state import pace_half_width

if TYPE_CHECKING:
    from bench.statistics.ratios import RatioEstimate

#: Series of the telemetry whose mean over the window is a metric, `<series>_mean`.
MEAN_SERIES = (
    "cpu_utilization_percent",
    "worker_cpu_percent",
    "other_cpu_percent",
    "stolen_cpu_percent",
    "memory_used_mb",
    "worker_rss_mb",
    "cpu_frequency_mhz",
    "cpu_temperature_c",
    "cpu_package_power_w",
    "gpu_utilization_percent",
    "gpu_memory_used_mb",
    "gpu_power_w",
    "gpu_sm_clock_mhz",
    "gpu_temperature_c",
    *("gpu_sm_active_percent", "gpu_sm_occupancy_percent", "gpu_tensor_active_percent"),
    *("gpu_fp64_active_percent", "gpu_fp32_active_percent", "gpu_fp16_active_percent"),
    *("gpu_dram_bandwidth_percent", "gpu_pcie_sent_mb_per_s", "gpu_pcie_received_mb_per_s"),
    *("gpu_nvlink_sent_mb_per_s", "gpu_nvlink_received_mb_per_s"),
)
#: Phases of an iteration whose mean time is a metric, `<phase>_time_s`.
PHASES = ("data", "forward", "backward", "optimizer")
#: Metrics of one batch's step on one device, by the cost model: the fact of `Complexity`, its unit.
_STEP_WORK = {
    "step_gflop": ("step_flops", 1e9),
    "step_gflop_required": ("required_flops", 1e9),
    "parameters": ("parameters", 1),
    "forward_gmac": ("forward_macs", 1e9),
}
#: The same, where they depend on the precision.
_OF_PRECISION = {
    "step_gb_eager": ("eager_bytes", 1e9),
    "step_gb_fused": ("fused_bytes", 1e9),
    "step_gb_compulsory": ("compulsory_bytes", 1e9),
    "intensity_min": ("intensity_min", 1),
    "intensity_max": ("intensity_max", 1),
    "weights_mb": ("memory.weights_bytes", 1e6),
    "gradients_mb": ("memory.gradients_bytes", 1e6),
    "optimizer_mb": ("memory.optimizer_bytes", 1e6),
    "activations_mb": ("memory.activations_bytes", 1e6),
}


def percentiles(values: Sequence[float], *percents: int) -> tuple[float, ...]:
    """Return these percentiles, each 1 to 99, by linear interpolation as NumPy's default."""
    ordered, last = sorted(values), len(values) - 1
    found = []
    for percent in percents:
        at, part = divmod(percent * last, 100)
        high = ordered[min(at + 1, last)]
        found.append((ordered[at] * (100 - part) + high * part) / 100)
    return tuple(found)


def iteration_statistics_ms(times_s: Sequence[float]) -> dict[str, float]:
    """Return mean, sample standard deviation and percentiles of iteration times, in ms.

    With a single iteration there is no deviation, and none is given.
    """
    times_ms = [seconds * 1e3 for seconds in times_s]
    mean_ms = statistics.fmean(times_ms)
    found = {"iteration_time_ms_mean": mean_ms}
    if len(times_ms) > 1:
        # `statistics.stdev` takes eight times as long; a report asks for thousands.
        squares = math.fsum((time_ms - mean_ms) ** 2 for time_ms in times_ms)
        found["iteration_time_ms_std"] = math.sqrt(squares / (len(times_ms) - 1))
    for percent, value in zip((50, 95, 99), percentiles(times_ms, 50, 95, 99), strict=True):
        found[f"iteration_time_ms_p{percent}"] = value
    return found


def data_wait_share(measurement: Measurement | None, ops: OpProfile | None) -> float | None:
    """Return the share of the window that the host spent waiting for the next batch.

    Where no window says it, that of the profiled steps, if they do.
    """
    if measurement is not None and measurement.data_wait_s is not None:
        return sum(measurement.data_wait_s) / measurement.window_s
    return None if ops is None else ratio(ops.data_wait_s, ops.step_time_s)


def _of_complexity(
    complexity: Complexity | None, metrics: Mapping[str, tuple[str, float]]
) -> dict[str, float]:
    if complexity is None:
        return {}
    facts = {name: (attrgetter(fact)(complexity), unit) for name, (fact, unit) in metrics.items()}
    known = {name: fact for name, fact in facts.items() if fact[0] is not None}
    return {name: fact if unit == 1 else fact / unit for name, (fact, unit) in known.items()}


def attained_flops_per_s(record: RunRecord) -> float | None:
    """Return algorithmic FLOP per second of a step, of all devices; None without a cost model.

    The model counts one batch; an iteration holds `grad_accum_steps` of them on each device.
    """
    if record.measurement is None or record.complexity is None:
        return None
    batches = record.config.grad_accum_steps * record.config.world_size
    return record.complexity.step_flops * batches / record.measurement.step_s


def iteration_dram_bytes(record: RunRecord) -> float | None:
    """Return bytes of DRAM of an iteration, of all devices, by their own counters."""
    if record.telemetry is None or (window := record.measurement) is None:
        return None
    iterations = window.samples / window.samples_per_iteration
    return ratio(record.telemetry.dram_bytes, iterations)


def gain_of(removal: Removal) -> RatioEstimate | None:
    """Return the time of a step over that of one without what was taken out; None without turns."""
    from bench.statistics.ratios import paired_ratio  # takes NumPy along

    pairs = [*zip(removal.with_s or (), removal.without_s or (), strict=True)]
    return paired_ratio([math.log(before / after) for before, after in pairs]) if pairs else None


def _gains(removals: Iterable[Removal]) -> dict[str, float | None]:
    """`gain_without_input` and the ends of its interval, likewise of the others."""
    found: dict[str, float | None] = {}
    for removal in removals:
        if (gain := gain_of(removal)) is not None:
            name = f"gain_without_{removal.what}"
            found |= {name: gain.ratio, f"{name}_low": gain.ends[0], f"{name}_high": gain.ends[1]}
    return found


#: A claim counts what a count says that is not further from it than this: clocks differ.
_SAME_WORK = 0.03


def claimed_work(record: RunRecord, mfu: float, peak_flops_per_s: float) -> dict[str, float | str]:
    """Return the FLOP of a step on one device that a script's own MFU asks for, and what they are.

    They are `mfu` x peak x the measured step. `claim_of_counted` and `claim_of_required` are their
    ratios to ours; `claim_counts` is the nearest of the usual counts, if it is within 3 %.
    """
    if record.measurement is None or (model := record.complexity) is None:
        return {"claim_counts": record.missing.get("complexity", "nothing was measured")}
    claimed = mfu * peak_flops_per_s * record.measurement.step_s / record.config.grad_accum_steps
    counts = {
        "all FLOP, masks hide nothing": model.step_flops,
        "the required FLOP": model.required_flops,
        "what checkpoints compute again, too": model.step_flops + model.recomputed_flops,
        "6 FLOP for each parameter and token": 6
        * model.parameters * model.batch_size * (model.tokens_per_sample or 0),
        "multiply-adds as one FLOP": model.step_flops / 2,
        "the forward pass alone": 2 * model.forward_macs,
        "a multiply-add as 4 FLOP": 2 * model.step_flops,
    }  # fmt: skip
    ratios = {name: claimed / count for name, count in counts.items() if count}
    nearest = min(ratios, key=lambda name: abs(ratios[name] - 1), default="")
    is_near = bool(ratios) and abs(ratios[nearest] - 1) <= _SAME_WORK
    found: dict[str, float | str | None] = {
        "claimed_step_gflop": claimed * record.config.grad_accum_steps / 1e9,
        "claim_of_counted": ratio(claimed, model.step_flops),
        "claim_of_required": ratio(claimed, model.required_flops),
        "claim_counts": nearest if is_near else "none of the usual counts",
    }
    return {name: fact for name, fact in found.items() if fact is not None}


def rate_name(config: RunConfig, resolved: ResolvedConfig) -> str:
    """Return the metric of a run's rate; a loader's has another name than a model's."""
    return "loader_images_per_s" if config.data_only else rate_metric(resolved.sample)


def summary(record: RunRecord) -> dict[str, float]:
    """Return the metrics of `record` by their names in the schema; what is unknown is left out.

    On several devices the means of what was sampled are the lowest rank's; the others are in the
    record.
    """
    found: dict[str, float | None] = {}
    measured, process, resolved = record.measurement, record.process, record.resolved
    if resolved is not None:
        found["batch_size"] = resolved.batch_size
    if measured is not None:
        timed = measured.phase_times_s or {}
        found |= {
            "window_s": measured.window_s,
            "iterations": len(measured.iteration_times_s),
            "pace_samples_per_s": measured.pace_samples_per_s,
            "pace_half_width": pace_half_width(measured.steady_times_s),
            "first_steady_iteration": measured.settled_after + 1,
            "data_wait_share": data_wait_share(measured, record.ops),
            **iteration_statistics_ms(measured.iteration_times_s),
            **{f"{name}_time_s": statistics.fmean(timed[name]) for name in PHASES if name in timed},
            "peak_memory_mb": ratio(measured.peak_memory_allocated_bytes, 1e6),
            "compile_time_s": measured.compile_time_s,
            **(_of_ranks(measured.ranks) if measured.ranks else {}),
        }
    if measured is not None and resolved is not None:
        samples_per_s = measured.throughput_samples_per_s
        found[rate_name(record.config, resolved)] = samples_per_s
        if resolved.tokens_per_sample is not None:
            found["throughput_tokens_per_s"] = resolved.tokens_per_sample * samples_per_s
        elif measured.window_tokens is not None:
            found["throughput_tokens_per_s"] = measured.window_tokens / measured.window_s
    found |= _gains(record.removals)
    found |= _of_complexity(record.complexity, _STEP_WORK | _OF_PRECISION)
    found["attained_gflops"] = ratio(attained_flops_per_s(record), 1e9)
    if process is not None:
        found |= {name: getattr(process, name) for name in ("real_s", "user_s", "system_s")}
        found["max_rss_mb"] = ratio(process.max_rss_bytes, 1e6)
    if record.telemetry is not None:
        found |= {f"{name}_mean": record.telemetry.mean(name) for name in MEAN_SERIES}
        found["energy_j"] = energy_j = record.telemetry.energy_j
        if measured is not None and resolved is not None:
            found[energy_metric(resolved.sample)] = ratio(energy_j, measured.samples)
            found["iteration_dram_gb"] = ratio(iteration_dram_bytes(record), 1e9)
    return _known(found)


@dataclass(frozen=True)
class StepCost:
    """Work of one step: algorithmic FLOP, and bytes by the model's three counts.

    `required_flops` are the part of `flops` that the mathematics needs, None where not known,
    `causal_skipped_flops` the part that fused attention may skip; `fp32_share` is what autocast has
    left in 32 bits, `half_share` what fp8 has in 16.
    """

    flops: int
    required_flops: int | None
    causal_skipped_flops: int
    fused_bytes: int
    eager_bytes: int
    compulsory_bytes: int
    fp32_share: float = 0.0
    half_share: float = 0.0

    @property
    def computed_share(self) -> float:
        """The part of the FLOP that the kernels compute for certain: what roofs hold for."""
        return 1 - self.causal_skipped_flops / self.flops


def step_cost(complexity: Complexity, batches: int, devices: int = 1) -> StepCost:
    """Return the cost of a step on all devices: so many batches on each, and one optimizer step.

    The compulsory bytes are those of one batch, however many there are: a floor that stays one.
    """
    per_batch = [op for op in complexity.ops if op.phase != "optimizer"]
    required, more = complexity.needed_flops, batches - 1
    fused = complexity.fused_bytes + more * sum(op.fused_bytes for op in per_batch)
    eager = complexity.eager_bytes + more * sum(op.eager_bytes for op in per_batch)
    return StepCost(
        flops=devices * batches * complexity.step_flops,
        required_flops=None if required is None else devices * batches * required,
        causal_skipped_flops=devices * batches * complexity.causal_skipped_flops,
        fused_bytes=devices * fused,
        eager_bytes=devices * eager,
        compulsory_bytes=devices * complexity.compulsory_bytes,
        fp32_share=complexity.fp32_share,
        half_share=complexity.half_share,
    )


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
    return ratio(cpu.flops, cpu.iterations) if cpu is not None else None


def matched_share(ops: OpProfile) -> float | None:
    """Return the share of the ops' time whose work the cost model knows; None without time."""
    return ratio(sum(op.time_s for op in ops.ops if op.flops is not None), ops.ops_time_s)


def profile_summary(record: ProfileRecord) -> dict[str, float]:
    """Return the metrics of `record` by their names in the schema; what is unknown is left out.

    `intensity_counted` is algorithmic FLOP per counted byte, `traffic_amplification` counted bytes
    over the least that a fused step would move. A processor's memory controllers count the whole
    machine, so they give neither.
    """
    found: dict[str, float | None] = {"executed_gflop": ratio(executed_flops(record), 1e9)}
    cost, cpu = profiled_step_cost(record), record.cpu_counters
    counted = record.counters.dram_bytes if record.counters else None
    found["counted_dram_gb"] = ratio(counted, 1e9)
    if cost is not None and counted:
        found["intensity_counted"] = cost.flops / counted
        found["traffic_amplification"] = ratio(counted, cost.fused_bytes)
    if record.ops is not None:
        found["device_busy_share"] = record.ops.device_busy_share
        found["ops_matched_share"] = matched_share(record.ops)
    if cpu is not None:
        found |= {
            "ipc": cpu.ipc,
            "cpi": cpu.cpi,
            "cache_miss_share": ratio(cpu.cache_misses, cpu.cache_references),
            "branch_miss_share": ratio(cpu.branch_misses, cpu.branches),
        }
    return _known(found)


def imported_summary(record: ImportedRecord) -> dict[str, float]:
    """Return the metrics of `record` by their names in the schema; what is unknown is left out.

    Work and attained FLOP/s are by the cost model, where it counted the step that the file names.
    Bytes are left out where the file does not say in which precision it computed.
    """
    found: dict[str, float | None] = dict(record.metrics)
    found["throughput_images_per_s"] = record.throughput_images_per_s
    found["batch_size"] = record.batch_size
    if record.complexity is not None:
        of_precision = {} if record.precision is None else _OF_PRECISION
        found |= _of_complexity(record.complexity, _STEP_WORK | of_precision)
        rate = record.throughput_images_per_s
        work = record.complexity.step_flops_per_sample
        found["attained_gflops"] = None if rate is None else rate * work / 1e9
    return _known(found)


def trace_summary(record: TraceRecord) -> dict[str, float]:
    """Return the metrics of `record` by their names in the schema; what is unknown is left out.

    Times are what the steps cost their device, or the marks' durations without a device; shares are
    of these, medians over the steps.
    """
    times_s = [step.device_time_s or step.wall_s for step in record.steps]
    found: dict[str, float | None] = {
        **(iteration_statistics_ms(times_s) if times_s else {}),
        "iterations": len(times_s),
        rate_metric(record.sample): record.throughput_samples_per_s,
    }
    for name in ("computation", "exposed_communication", "exposed_copies", "idle"):
        shares = (ratio(getattr(step, f"{name}_s"), step.device_time_s) for step in record.steps)
        if known := [share for share in shares if share is not None]:
            found[f"{name}_share"] = statistics.median(known)
    if (idle_share := found.get("idle_share")) is not None:
        found["device_busy_share"] = 1 - idle_share
    return _known(found)


def _of_ranks(figures: DistributedFigures) -> dict[str, float | None]:
    """What communication adds; the longest mean step of a rank itself, and how far they lie apart.

    A rank's own is what is left of the step without its wait in the exchange.
    """
    known = [rank for rank in figures.ranks if rank.iteration_times_s and rank.exchange_wait_s]
    steps_s = [statistics.fmean(rank.iteration_times_s or ()) for rank in known]
    waits_s = [statistics.fmean(rank.exchange_wait_s or ()) for rank in known]
    own_s = [step - wait for step, wait in zip(steps_s, waits_s, strict=True)]
    found: dict[str, float | None] = {"communication_share": figures.communication_share}
    if len(known) > 1:
        found["slowest_rank_time_ms"] = 1e3 * max(own_s)
        found["rank_spread_share"] = (max(own_s) - min(own_s)) / statistics.fmean(steps_s)
    return found


def _known(found: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in found.items() if value is not None}
