"""The report's sentences, from what there is to the commands. Every number is computed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from analysis.figures.rooflines.device_roofs import missing_levels
from analysis.profiles.op_places import OpPlaces
from analysis.report.tables.run_columns import utc
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.groups import group_runs
from analysis.runs.placed import PlacedRun, recorded
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.quantities import bytes_rate, counted, percent, three_digits
from analysis.runs.run import Run
from analysis.traces.placed import PlacedTrace
from bench.config import RunConfig, run_options
from bench.records import Counters, OpProfile

#: Ops that a sentence names.
_MAX_NAMED_OPS = 5

REFERENCES = (
    "S. Williams, A. Waterman, D. Patterson: Roofline, an insightful visual performance model. "
    "Communications of the ACM 52(4), 2009.",
    "B. L. Welch: The generalization of Student's problem when several different population "
    "variances are involved. Biometrika 34, 1947.",
    "S. Holm: A simple sequentially rejective multiple test procedure. Scandinavian Journal of "
    "Statistics 6, 1979.",
)


def summary(
    runs: Sequence[Run], profiles: Sequence[PlacedProfile], traces: Sequence[PlacedTrace] = ()
) -> str:
    """Return how many runs, profiles and traces there are, and where and when they ran."""
    of_traces = counted(len(traces), "trace")
    of_profiles = counted(len(profiles), "profile")
    if not runs:
        words = [of_profiles] * bool(profiles)
        words += [f"{of_traces} that other programs recorded"] * bool(traces)
        return f"{', and '.join(words)}."
    machines = {run.env for run in runs}
    failed = sum(run.outcome != "ok" for run in runs)
    imported = sum(run.imported_from is not None for run in runs)
    counts = ((failed, "without a result"), (imported, "imported"))
    notes = ", ".join(f"{number} {words}" for number, words in counts if number)
    remarks = f" ({notes})" if notes else ""
    created = [run.record.created for run in runs if run.record]
    when = ""
    if created:
        first, last = min(created), max(created)
        when = f", on {utc(first)}" if first == last else f", between {utc(first)} and {utc(last)}"
    ran = f"{counted(len(runs), 'run')}{remarks} on {counted(len(machines), 'machine')}"
    profiled = f", and {of_profiles}" if profiles else ""
    traced = f", and {of_traces}" if traces else ""
    return f"{ran}{when}{profiled}{traced}."


def limits(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the limits that apply to `runs`."""
    results = recorded(runs)
    points = [run.point for run in runs if run.point]
    yield (
        "FLOP are those of the algorithm (convolution, linear, matrix product, attention; a "
        "multiply-add is 2); elementwise work is left out of the rate, not of the time."
    )
    if any(point.intensity_counted is None for point in points):
        yield (
            "Where no bytes were counted they are modelled, at least as if every chain were fused "
            "and at most as if every operation went through memory. So such a run is an interval, "
            "not a point."
        )
    if any(point.intensity_counted is not None for point in points):
        yield (
            "Counted bytes are those of one profiled step, whose kernels ran one after another; "
            "the intensity is the algorithm's FLOP over them. Executed FLOP, with padding and "
            "recomputation, are another quantity and share no column with the algorithm's."
        )
    if any(not point.bound_sure for point in points):
        yield "A bound with a question mark depends on where in that interval the traffic lies."
    if datasheet := sum(point.ceiling.kind == "datasheet" for point in points):
        stand = "stands" if datasheet == 1 else "stand"
        yield (
            f"{counted(datasheet, 'run')} {stand} under a datasheet's roof, which programs "
            "seldom reach: the fraction of the roof reads low."
        )
    if any(result.record.config.reads_images for result in results):
        yield (
            "Waiting for data is the host's time inside the loader. Where the step runs on the "
            "processor, loader processes also take cores from it, which this does not show."
        )
    if any(run.imported_from is not None for run in runs):
        yield (
            "Imported runs are what their sources say. Their FLOP and bytes are a count of the "
            "training step that a source names, and their roof is that of a device of the same "
            "name: other code, another image size or another part would move them. What is assumed "
            "stands in the table of imported runs; nothing is known of waiting for data."
        )
    if any(group.repeats().log_variance is None for group in group_runs(runs)):
        yield (
            "A configuration with a single run says nothing of how much repeats differ; its ratios "
            "have no interval."
        )
    if runs:
        yield f"{_intervals(runs)} They take logarithms as normal."


def _intervals(runs: Sequence[Run]) -> str:
    machines = [len(group.repeats().machines) for group in group_runs(runs)]
    alone = "repeats on one machine, and say nothing of others of its kind"
    if max(machines, default=0) > 1:
        return (
            "Where a configuration ran on several machines of a kind its intervals are of machines "
            f"of that kind; elsewhere they are of {alone}."
        )
    if min(machines, default=0) == 1:
        return f"Intervals are of {alone}."
    return "Intervals are of these runs alone: not all of their records say which machine ran."


def profile_sentences(profile: PlacedProfile) -> Iterator[str]:
    """Yield what a profile saw, what it did not see, and why."""
    record, unknown = profile.record, "no reason recorded"
    runs = ", ".join(str(result.number) for result in profile.runs)
    yield f"Explains run {runs}." if runs else "Explains no run of this report."
    if record.outcome != "ok":
        yield _ended(f"Outcome {record.outcome}: {record.reason or unknown}")
    if record.ops is None or profile.ops is None:
        yield _ended(f"No times of ops: {record.missing.get('ops', unknown)}")
    else:
        yield from _of_ops(record.ops, profile.ops)
    if record.counters is None:
        yield _ended(f"No device counters: {record.missing.get('counters', unknown)}")
    else:
        yield from _of_counters(record.counters, profile.used)
    if record.cpu_counters is None:
        yield _ended(f"No processor counters: {record.missing.get('cpu_counters', unknown)}")
    else:
        for name, why in record.cpu_counters.missing.items():
            yield _ended(f"Processor counters without {name}: {why}")
    for finding in profile.findings:
        if finding.level == "note":
            yield _ended(f"{finding.message[:1].upper()}{finding.message[1:]}")


def _ended(sentence: str) -> str:
    """A reason may be a paragraph with its own full stop."""
    return sentence if sentence.endswith(".") else f"{sentence}."


def _of_ops(ops: OpProfile, places: OpPlaces) -> Iterator[str]:
    share = f", {percent(ops.ops_time_s / ops.step_time_s)} of it in ops" if ops.step_time_s else ""
    yield (
        f"Times of ops by {ops.method}, over {ops.iterations} steps: a profiled step took "
        f"{three_digits(1e3 * ops.step_time_s)} ms{share}."
    )
    if ops.device_busy_share is None:
        yield _ended(f"The device's busy share is not known: {ops.missing['device_busy_share']}")
    else:
        gap = ops.launch_gap_s
        gaps = "" if gap is None else f", {three_digits(1e3 * gap)} ms idle between kernels"
        waited_s = ops.exposed_communication_s
        waits = f", {three_digits(1e3 * waited_s)} ms of it communication alone" if waited_s else ""
        busy = percent(ops.device_busy_share)
        yield f"The device was busy {busy} of the profiled step{waits}{gaps}."
    if ops.copies is None:
        yield _ended(f"Copies are not known: {ops.missing['copies']}")
    if places.unmatched:
        named = ", ".join(
            f"{op.name} {percent(op.share)}" for op in places.unmatched[:_MAX_NAMED_OPS]
        )
        rest = len(places.unmatched) - _MAX_NAMED_OPS
        more = f" and {rest} more" if rest > 0 else ""
        yield (
            f"Not in the cost model, {percent(places.unmatched_share)} of the ops' time: "
            f"{named}{more}."
        )
    if unseen := ops.missing.get("unseen"):
        yield _ended(f"Of the cost model: {unseen}")


def _of_counters(counters: Counters, used: UsedCeiling | None) -> Iterator[str]:
    chip = f" on {counters.chip}" if counters.chip else ""
    yield (
        f"Counters by {counters.source}{chip}: {counters.kernels} launches, "
        f"{len(counters.per_kernel)} kernel names. Their durations are those of one kernel "
        "at a time with emptied caches, and not the training's."
    )
    for name, reason in counters.missing.items():
        yield _ended(f"Not counted, {name}: {reason}")
    for cache in used.cache_roofs if used else ():
        if cache.peak_bytes_per_s is not None:
            yield f"{cache.level}: {bytes_rate(cache.peak_bytes_per_s)} by {cache.source}."
    for reason in missing_levels(used):
        yield _ended(f"No slope for {reason}")


def commands(runs: Sequence[PlacedRun]) -> dict[str, str]:
    """Return each command that repeats runs, with the numbers of those runs before it."""
    numbers: dict[str, list[str]] = {}
    for run in runs:
        numbers.setdefault(run_command(run.record.config), []).append(f"{run.number}")
    return {f"run {', '.join(those)}": command for command, those in numbers.items()}


def run_command(config: RunConfig) -> str:
    """Return the command line of `config`, quoted for a POSIX shell."""
    return shlex.join(["mlproject", "run", *run_options(config)])
