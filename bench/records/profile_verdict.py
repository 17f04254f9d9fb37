"""Whether the numbers of one profile can be trusted, judged from it and the timed run alone.

What needs a roof (rates above a ceiling) is judged in the analysis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bench.records import (
    CpuCounters,
    GpuCounters,
    OpProfile,
    ProfileRecord,
    RunRecord,
    Verdict,
    WorkSet,
)
from bench.records.base import Found, Weight
from bench.records.kernel_names import is_chosen_by_library, kernel_name
from bench.records.metrics import executed_flops, matched_share, profiled_step_cost
from bench.records.run_verdict import of_telemetry

#: Counters without which a profile has no intensity.
_NEEDED = ("dram_bytes", "flops")
#: Differences of two work sets that a message names; the records hold them all.
_NAMED_DIFFERENCES = 3
#: Of the ops' time: more without a counterpart in the cost model, and the picture has a hole.
_UNMATCHED_SHARE = 0.05
#: Times of the timed step: beyond this the profiler's own cost shows in every op.
_SLOWED = 1.25
#: Likewise, on a CPU: the ops' times are those of another step, whatever slowed it.
_DISTURBED = 2.5
#: Of a step's time, which its ops cannot pass but for the rounding of medians.
_MOST_OF_STEP = 1.03


def judge_profile(record: ProfileRecord, timed: RunRecord | None) -> Verdict:
    """Return what speaks against a profile, and the gravest of the findings' levels.

    `timed` is the measurement that it explains: both must have launched the same work.
    """
    return Verdict.of(_findings(record, timed))


def _findings(record: ProfileRecord, timed: RunRecord | None) -> Iterator[Found]:
    if record.outcome != "ok":
        yield record.outcome, "invalid", record.reason or record.outcome
    if record.counters is not None:
        for name in _NEEDED:
            if getattr(record.counters, name) is None:
                why = record.counters.missing[name]
                yield "metric-missing", "invalid", f"{name} is needed and was not counted: {why}"
        yield from _of_traffic(record, record.counters)
        if record.work is not None and record.work.unit == "kernels":
            counted = kernel_set(record.counters)
            yield from _different(counted, record.work, "the counted step", "the profile's own")
    yield from _of_executed(record)
    if record.cpu_counters is not None:
        yield from _of_cpu(record.cpu_counters)
    if record.ops is not None:
        on_host = record.resolved is not None and record.resolved.backend == "cpu"
        yield from _of_ops(record.ops, timed, on_host=on_host)
    yield from _of_machine(record)
    if timed is None:
        why = record.missing.get("timed_record_id", "the timed run was not found")
        yield "no-timed-run", "note", f"not compared with a timed run: {why}"
    else:
        yield from _of_work(record, timed)


def _of_machine(record: ProfileRecord) -> Iterator[Found]:
    seen: set[str] = set()
    for tool, telemetry in (record.tool_telemetry or {}).items():
        for code, level, message in of_telemetry(telemetry, record.environment):
            if code not in seen:
                seen.add(code)
                yield code, level, f"{message} (tool {tool})"


def _of_work(record: ProfileRecord, timed: RunRecord) -> Iterator[Found]:
    measurement = timed.measurement
    if record.work is None:
        why = record.missing["work"]
        yield "work-unknown", "note", f"what the profiled step launched is not known: {why}"
    elif measurement is None or measurement.work is None:
        why = measurement.missing["work"] if measurement else "nothing was measured"
        yield "work-unknown", "note", f"what the timed run launched is not known: {why}"
    else:
        yield from _different(record.work, measurement.work, "the profile", "the timed run")


def _different(ours: WorkSet, theirs: WorkSet, us: str, them: str) -> Iterator[Found]:
    """What one launched and the other did not.

    Kernels that a library chooses again in each process may differ, as long as both have some.
    """
    differences = ours.differences(theirs)
    if ours.unit != theirs.unit:
        differences = (f"{ours.unit} against {theirs.unit}",)
    elif ours.unit == "kernels":
        (chosen, fixed), (their_chosen, their_fixed) = map(_split, (ours, theirs))
        other = chosen.differences(their_chosen)
        if other and chosen.counts and their_chosen.counts:
            differences = fixed.differences(their_fixed)
            message = (
                f"convolutions and products ran in other kernels than in {them} ({len(other)} "
                "names or counts differ): cuDNN and cuBLAS choose them in each process"
            )
            yield "other-algorithms", "note", message
    named = differences[:_NAMED_DIFFERENCES]
    if rest := len(differences) - len(named):
        named = (*named, f"and {rest} more")
    if named:
        message = (
            f"{us} did other work than {them} ({'; '.join(named)}): what it counted is not that "
            "run's; profile again with the same settings, libraries and algorithm choices"
        )
        yield "other-work", "invalid", message


def _split(work: WorkSet) -> list[WorkSet]:
    return [
        WorkSet(
            unit=work.unit,
            counts={n: c for n, c in work.counts.items() if is_chosen_by_library(n) is chosen},
        )
        for chosen in (True, False)
    ]


def _of_traffic(record: ProfileRecord, counters: GpuCounters) -> Iterator[Found]:
    cost, counted = profiled_step_cost(record), counters.dram_bytes
    if cost is None or record.complexity is None or counted is None:
        return
    if counted < cost.compulsory_bytes:
        cache = record.complexity.cache_bytes / 2**20
        message = (
            f"{_gb(counted)} counted, under the {_gb(cost.compulsory_bytes)} that no cache of "
            f"{cache:.0f} MiB can save: impossible; a part of the step was not counted, "
            "or the cost model is wrong"
        )
        yield "below-compulsory-bytes", "invalid", message
    elif counted < cost.fused_bytes:
        message = (
            f"{_gb(counted)} counted, under the {_gb(cost.fused_bytes)} of a fused step: "
            "a cache kept some tensors between two kernels"
        )
        yield "below-fused-bytes", "note", message
    elif counted > cost.eager_bytes:
        message = (
            f"{_gb(counted)} counted, over the {_gb(cost.eager_bytes)} of every op by itself: "
            "kernels move more than the cost model knows of (layout changes, workspaces)"
        )
        yield "above-eager-bytes", "suspect", message


def kernel_set(counters: GpuCounters) -> WorkSet:
    """Return how often each kernel was launched. Copies and fills of memory are no kernels."""
    counts: Counter[str] = Counter()
    for kernel in counters.per_kernel:
        counts[kernel_name(kernel.name)] += kernel.launches
    return WorkSet(unit="kernels", counts=counts)


def _of_executed(record: ProfileRecord) -> Iterator[Found]:
    cost, executed = profiled_step_cost(record), executed_flops(record)
    if cost is not None and executed is not None and executed < cost.flops:
        share = f"{100 * executed / cost.flops:.0f} % of the algorithmic FLOP were executed"
        why = "Winograd's convolutions and causal attention need fewer"
        yield "fewer-executed-flops", "note", f"{share}: {why}"


def _of_cpu(counters: CpuCounters) -> Iterator[Found]:
    shares = counters.running_share
    scaled = {event: share for event, share in shares.items() if share < 1}
    if scaled:
        event = min(scaled, key=scaled.__getitem__)
        message = (
            f"{len(scaled)} of {len(shares)} events shared the processor's counters and are "
            f"scaled up; {event} was counted in {100 * scaled[event]:.0f} % of the window"
        )
        yield "multiplexed", "note", message


def _of_ops(ops: OpProfile, timed: RunRecord | None, *, on_host: bool) -> Iterator[Found]:
    """Times of ops that do not add up, or that the profiler's own cost is a part of.

    On a CPU that cost is in the ops themselves; on a GPU the kernels' own times do not have it.
    """
    if ops.exclusive_s > _MOST_OF_STEP * ops.step_time_s:
        message = (
            f"ops take {100 * ops.exclusive_s / ops.step_time_s:.0f} % of the profiled step: "
            "impossible where the steps were alike, so something disturbed some of them"
        )
        yield "ops-above-step", "suspect", message
    matched = matched_share(ops)
    if matched is not None and 1 - matched > _UNMATCHED_SHARE:
        share = f"{100 * (1 - matched):.0f} %"
        message = f"ops without a counterpart in the cost model take {share} of the time"
        yield "unmatched-ops", "note", message
    if timed is not None and timed.measurement is not None:
        times = ops.step_time_s / timed.measurement.step_s
        if times > _SLOWED:
            message = f"the profiled step took {times:.1f} times the timed one"
            level: Weight = "suspect" if on_host and times > _DISTURBED else "note"
            yield "profiler-cost", level, message


def _gb(count_bytes: float) -> str:
    return f"{count_bytes / 1e9:.3g} GB"
