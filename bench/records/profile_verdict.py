"""Whether the numbers of one profile can be trusted, judged from it and the timed run alone.

What needs a roof (rates above a ceiling) is judged in the analysis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bench.records import (
    CpuCounters,
    Finding,
    GpuCounters,
    OpProfile,
    ProfileRecord,
    RunRecord,
    Verdict,
    WorkSet,
)
from bench.records.base import Weight
from bench.records.kernel_names import is_chosen_by_library, kernel_name
from bench.records.metrics import executed_flops, matched_share, profiled_step_cost
from bench.records.run_verdict import of_telemetry

#: Counters without which a profile has no intensity.
_NEEDED = ("dram_bytes", "flops")
#: Differences of two work sets that a finding names; the records hold them all.
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


def _findings(record: ProfileRecord, timed: RunRecord | None) -> Iterator[Finding]:
    if record.outcome != "ok":
        yield Finding.of(record.outcome, reason=record.reason or record.outcome)
    if record.counters is not None:
        for name in _NEEDED:
            if getattr(record.counters, name) is None:
                why = record.counters.missing[name]
                yield Finding.of("metric-missing", metric=name, why=why)
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
        yield Finding.of("no-timed-run", why=why)
    else:
        yield from _of_work(record, timed)


def _of_machine(record: ProfileRecord) -> Iterator[Finding]:
    seen: dict[str, Finding] = {}
    for tool, telemetry in (record.tool_telemetry or {}).items():
        for finding in of_telemetry(telemetry, record.environment):
            seen.setdefault(finding.code, finding.with_facts(tool=tool))
    yield from seen.values()


def _of_work(record: ProfileRecord, timed: RunRecord) -> Iterator[Finding]:
    measurement = timed.measurement
    if record.work is None:
        yield Finding.of("work-unknown", side="profiled step", why=record.missing["work"])
    elif measurement is None or measurement.work is None:
        why = measurement.missing["work"] if measurement else "nothing was measured"
        yield Finding.of("work-unknown", side="timed run", why=why)
    else:
        yield from _different(record.work, measurement.work, "the profile", "the timed run")


def _different(ours: WorkSet, theirs: WorkSet, us: str, them: str) -> Iterator[Finding]:
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
            yield Finding.of("other-algorithms", them=them, number=len(other))
    named = differences[:_NAMED_DIFFERENCES]
    if rest := len(differences) - len(named):
        named = (*named, f"and {rest} more")
    if named:
        yield Finding.of("other-work", us=us, them=them, differences="; ".join(named))


def _split(work: WorkSet) -> list[WorkSet]:
    return [
        WorkSet(
            unit=work.unit,
            counts={n: c for n, c in work.counts.items() if is_chosen_by_library(n) is chosen},
        )
        for chosen in (True, False)
    ]


def _of_traffic(record: ProfileRecord, counters: GpuCounters) -> Iterator[Finding]:
    cost, counted = profiled_step_cost(record), counters.dram_bytes
    if cost is None or record.complexity is None or counted is None:
        return
    counted_gb = counted / 1e9
    if counted < cost.compulsory_bytes:
        yield Finding.of(
            "below-compulsory-bytes",
            counted_gb=counted_gb,
            least_gb=cost.compulsory_bytes / 1e9,
            cache_mib=record.complexity.cache_bytes / 2**20,
        )
    elif counted < cost.fused_bytes:
        fused_gb = cost.fused_bytes / 1e9
        yield Finding.of("below-fused-bytes", counted_gb=counted_gb, fused_gb=fused_gb)
    elif counted > cost.eager_bytes:
        eager_gb = cost.eager_bytes / 1e9
        yield Finding.of("above-eager-bytes", counted_gb=counted_gb, eager_gb=eager_gb)


def kernel_set(counters: GpuCounters) -> WorkSet:
    """Return how often each kernel was launched. Copies and fills of memory are no kernels."""
    counts: Counter[str] = Counter()
    for kernel in counters.per_kernel:
        counts[kernel_name(kernel.name)] += kernel.launches
    return WorkSet(unit="kernels", counts=counts)


def _of_executed(record: ProfileRecord) -> Iterator[Finding]:
    cost, executed = profiled_step_cost(record), executed_flops(record)
    if cost is not None and executed is not None and executed < cost.flops:
        yield Finding.of("fewer-executed-flops", percent=100 * executed / cost.flops)


def _of_cpu(counters: CpuCounters) -> Iterator[Finding]:
    shares = counters.running_share
    scaled = {event: share for event, share in shares.items() if share < 1}
    if scaled:
        least = min(scaled, key=scaled.__getitem__)
        yield Finding.of(
            "multiplexed",
            number=len(scaled),
            events=len(shares),
            event=least,
            percent=100 * scaled[least],
        )


def _of_ops(ops: OpProfile, timed: RunRecord | None, *, on_host: bool) -> Iterator[Finding]:
    """Times of ops that do not add up, or that the profiler's own cost is a part of.

    On a CPU that cost is in the ops themselves; on a GPU the kernels' own times do not have it.
    """
    if ops.exclusive_s > _MOST_OF_STEP * ops.step_time_s:
        yield Finding.of("ops-above-step", percent=100 * ops.exclusive_s / ops.step_time_s)
    matched = matched_share(ops)
    if matched is not None and 1 - matched > _UNMATCHED_SHARE:
        yield Finding.of("unmatched-ops", percent=100 * (1 - matched))
    if timed is not None and timed.measurement is not None:
        times = ops.step_time_s / timed.measurement.step_s
        if times > _SLOWED:
            level: Weight = "suspect" if on_host and times > _DISTURBED else "note"
            yield Finding.of("profiler-cost", level, times=times)
