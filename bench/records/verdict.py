"""Whether the numbers of a record can be trusted: judged from it alone, a profile beside its run.

What needs a roof (numbers above it, the bound) is judged in the analysis.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from bench.config import MIN_ITERATIONS, rate_unit
from bench.records import (
    CLOCK_SETTING,
    POWER_LIMIT,
    CeilingsRecord,
    CpuCounters,
    Environment,
    Finding,
    GpuCounters,
    Measurement,
    OpProfile,
    ProfileRecord,
    ResolvedConfig,
    RunRecord,
    Telemetry,
    Verdict,
    WorkSet,
)
from bench.records.base import Weight
from bench.records.complexity import LEAST_IN_FP32, SCALED_PRODUCT, plain_label
from bench.records.kernel_names import is_chosen_by_library, kernel_name
from bench.records.metrics import (
    data_wait_share,
    executed_flops,
    matched_share,
    profiled_step_cost,
)
from bench.records.slow_rank import slow_rank
from bench.statistics.steady_state import is_warm, window_class

_THROTTLED_SHARE = 0.05
_INPUT_BOUND_SHARE = 0.05
_OUTLIER_RATIO = 2.0
#: Of the rest of the window: more than neighbouring iterations of a busy machine differ.
_NOT_WARM = 1.2
#: Of the usable cores; the launcher's own sampling stays under 1 %.
_BUSY_HOST_SHARE = 0.05


def judge(
    record: RunRecord | CeilingsRecord | ProfileRecord, timed: RunRecord | None = None
) -> Verdict:
    """Return the findings about a record, and their gravest level.

    What was not measured to its end is invalid, whatever times it holds. `timed` is the measurement
    that a profile explains: both must have launched the same work.
    """
    return Verdict.of(_findings(record, timed))


def _findings(
    record: RunRecord | CeilingsRecord | ProfileRecord, timed: RunRecord | None
) -> Iterator[Finding]:
    if record.outcome != "ok":
        yield Finding.of(record.outcome, reason=record.reason or record.outcome)
    if isinstance(record, ProfileRecord):
        yield from _of_profile(record, timed)
        return
    run = record if isinstance(record, RunRecord) else None
    measurement = None if run is None else run.measurement
    if run is not None and measurement is not None:
        yield from _of_warm_up(measurement)
        yield from _of_window(measurement, run)
        yield from run.contradictions()
        if not run.config.data_only:
            yield from _of_training(measurement, run)
    if record.telemetry is not None:
        yield from _of_telemetry(record.telemetry, record.environment)
    elif record.outcome == "ok":
        why = record.missing.get("telemetry", "its launcher had ended")
        yield Finding.of("unwatched", why=why)
        if measurement is not None and record.environment is not None:
            yield from _of_host(record.environment, measurement.other_cpu_cores or 0.0)
    if run is not None:
        yield from _of_asked(run)
    if record.environment is not None:
        yield from _of_environment(record.environment)


def _of_asked(run: RunRecord) -> Iterator[Finding]:
    """Yield how a run departs from what was asked for, and what it was asked to take out."""
    if run.resolved is not None and not run.config.data_only:
        yield from of_precision(run.resolved, run.config.precision)
    removed = [removal.what for removal in run.removals if removal.with_s]
    if removed and run.script:  # a run of ours ends after it, and its loss is the window's
        yield Finding.of("taken-out", what=", ".join(removed))


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


def _of_window(measurement: Measurement, run: RunRecord) -> Iterator[Finding]:
    times, sizes = measurement.iteration_times_s, measurement.iteration_samples
    if sizes is not None:
        yield Finding.of("sizes-differ", least=min(sizes), most=max(sizes))
        return
    if len(times) < MIN_ITERATIONS:
        yield Finding.of("few-iterations", iterations=len(times))
    yield from _of_steadiness(measurement, run)
    slow_s = _OUTLIER_RATIO * measurement.pace_s
    if slow := sum(time > slow_s for time in times):
        yield Finding.of("outliers", slow=slow, iterations=len(times))


def _of_steadiness(measurement: Measurement, run: RunRecord) -> Iterator[Finding]:
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
            moved=_moved(run.telemetry, sum(times[: window.after])),
            cut=measurement.settled_after or None,
        )
    if measurement.is_disturbed:
        yield Finding.of(
            "disturbed",
            samples_per_s=measurement.throughput_samples_per_s,
            pace_samples_per_s=measurement.pace_samples_per_s,
            unit=None if run.resolved is None else rate_unit(run.resolved.sample),
            causes=_disturbance(measurement, run.telemetry),
        )


#: Series that may move with a window's level; in percent of a core, those that others used.
_USES = {"other_cpu_percent": "other programs", "stolen_cpu_percent": "the host's other guests"}
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
    """`other programs (120 % of a core), SwThermal`, as far as causes are known."""
    causes = []
    for series in telemetry.series if telemetry else ():
        lowest, mean = min(series.values, default=0.0), statistics.fmean(series.values or (0.0,))
        if series.name in _USES and mean > _USED_PERCENT:
            causes.append(f"{_USES[series.name]} ({mean:.0f} % of a core)")
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
    if run.complexity and (left := run.complexity.half_share):
        others = (op for op in run.complexity.ops if op.flops and op.op != SCALED_PRODUCT)
        which = ", ".join(sorted({plain_label(op.op) for op in others}))
        yield Finding.of("products-in-16-bits", percent=100 * left, which=which)
    share = data_wait_share(measurement, run.ops)
    if share is not None and share > _INPUT_BOUND_SHARE:
        yield Finding.of("input-bound", percent=100 * share)
    if changed := measurement.changed_switches:
        file = "script" if run.script else "model's file"
        yield Finding.of("changed-switches", file=file, switches=", ".join(changed))
    if measurement.hidden_syncs:
        yield Finding.of("hidden-syncs", times=measurement.hidden_syncs)
    yield from _of_ranks(measurement, run)
    if run.script:
        return  # its loss is its own
    if measurement.last_loss is None and measurement.first_loss is None:
        yield Finding.of("loss-not-finite", where="beginning")
    elif measurement.last_loss is None and run.outcome == "ok":
        yield Finding.of("loss-not-finite", where="end")


def _of_ranks(measurement: Measurement, run: RunRecord) -> Iterator[Finding]:
    """Yield which ranks are not there, whose batch is another, and who makes the others wait."""
    if (figures := measurement.ranks) is None:
        if run.script and run.config.world_size > 1:
            yield Finding.of("one-rank", ranks=run.config.world_size)
        return
    absent = [rank for rank in figures.ranks if not rank.iteration_times_s]
    if absent:
        names, why = (f"{rank.rank}" for rank in absent), absent[0].missing["iteration_times_s"]
        yield Finding.of("ranks-absent", absent=", ".join(names), why=why)
    sizes = [rank.samples_per_step for rank in figures.ranks if rank.samples_per_step]
    if len({*sizes}) > 1:
        yield Finding.of("ranks-differ", least=min(sizes), most=max(sizes))
    on_card = measurement.iteration_clock == "cuda_events"
    if slow := slow_rank(figures.ranks, on_card=on_card, telemetry=run.telemetry):
        yield slow


def _of_telemetry(telemetry: Telemetry, environment: Environment | None) -> Iterator[Finding]:
    """What else ran on the machine, and what slowed the device."""
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


# Profiles

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


def _of_profile(record: ProfileRecord, timed: RunRecord | None) -> Iterator[Finding]:
    if record.counters is not None:
        for name in _NEEDED:
            if getattr(record.counters, name) is None:
                why = record.counters.missing[name]
                yield Finding.of("metric-missing", metric=name, why=why)
        yield from _of_traffic(record, record.counters)
        if record.work is not None and record.work.unit == "kernels":
            counted = kernel_set(record.counters)
            yield from _different(counted, record.work, "the counted step", "the profile's own")
    cost, executed = profiled_step_cost(record), executed_flops(record)
    if cost is not None and executed is not None and executed < cost.flops:
        yield Finding.of("fewer-executed-flops", percent=100 * executed / cost.flops)
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
        for finding in _of_telemetry(telemetry, record.environment):
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
