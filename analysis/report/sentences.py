"""The report's sentences: steps, work and roofs; how its runs were measured, and are again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from operator import itemgetter
from typing import Any

import yaml

from analysis.profiles import OpPlace, Places, check_ops, time_share
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.groups import Group, fastest, group_runs
from analysis.runs.place import PlacedProfile
from analysis.runs.run import Run, recorded
from analysis.table import grouped
from analysis.traces.placed import PlacedTrace, compare_two
from analysis.words import bytes_rate, counted, flops_rate, percent, three_digits
from bench.config import RunConfig, run_options
from bench.errors import Unknown
from bench.records import Counters, OpProfile

#: Ops that a sentence names.
_MAX_NAMED_OPS = 5
#: Ops with less of the ops' time are not worth a name.
_NAMED_SHARE = 0.05
#: What a profile may lack, for people.
_PARTS_OF_PROFILE = {
    "ops": "times of ops",
    "counters": "device counters",
    "cpu_counters": "processor counters",
}
#: What the counters of a trace may lack, for people.
_COUNTED_IN_TRACE = {"flops": "FLOP", "dram_bytes": "DRAM bytes", "duration_s": "time"}


def _ended(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}{'' if sentence.endswith('.') else '.'}"


def step_sentences(one: PlacedProfile | PlacedTrace) -> list[str]:
    """Return what a profile or a trace saw, the roof above it, what it did not see, and why."""
    found = _of_profile(one) if isinstance(one, PlacedProfile) else _of_trace(one)
    return [_ended(sentence) for sentence in found]


def opening(profiles: Sequence[PlacedProfile], traces: Sequence[PlacedTrace]) -> list[str]:
    """Return what a report without runs opens with: the bound of the first trace's steps."""
    said = []
    if traces:
        record = traces[0].record
        said += [f"{traces[0].label} is bound by {record.bound}", *record.advice]
        compared = compare_two([trace.record for trace in traces])
        if isinstance(compared, Unknown):
            said.append(f"the traces are not compared: {compared.reason}")
    if profiles:
        said += ["No timed run is here: a profile shows a step's time, and no throughput"]
    return [_ended(sentence) for sentence in said]


def _of_profile(profile: PlacedProfile) -> Iterator[str]:
    record, unknown = profile.record, "no reason recorded"
    runs = ", ".join(str(result.number) for result in profile.runs)
    yield f"Explains run {runs}" if runs else "Explains no run of this report"
    if record.outcome != "ok":
        yield f"Outcome {record.outcome}: {record.reason or unknown}"
    for name, what in _PARTS_OF_PROFILE.items():
        if getattr(record, name) is None:
            yield f"No {what}: {record.missing.get(name, unknown)}"
    if record.ops is not None and profile.ops is not None:
        yield from _of_ops(record.ops, profile.ops)
    if record.counters is not None:
        yield from _of_counters(record.counters, profile.used)
    if record.cpu_counters is not None:
        for name, why in record.cpu_counters.missing.items():
            yield f"Processor counters without {name}: {why}"
    yield from (found.message for found in profile.findings if found.level == "note")


def _of_ops(ops: OpProfile, places: Places[OpPlace]) -> Iterator[str]:
    yield f"Times of ops by {ops.method}, over {ops.iterations} steps"
    if ops.device_busy_share is None:
        yield f"The device's busy share is not known: {ops.missing['device_busy_share']}"
    if ops.copies is None:
        yield f"Copies are not known: {ops.missing['copies']}"
    if places.unknown:
        named = [f"{op.name} {percent(op.share)}" for op in places.unknown[:_MAX_NAMED_OPS]]
        rest = len(places.unknown) - len(named)
        yield (
            f"Not in the cost model, {percent(time_share(places.unknown))} of the ops' time: "
            f"{', '.join(named)}{f' and {rest} more' if rest else ''}"
        )
    if unseen := ops.missing.get("unseen"):
        yield f"Of the cost model: {unseen}"


def _of_counters(counters: Counters, used: UsedCeiling | None) -> Iterator[str]:
    chip = f" on {counters.chip}" if counters.chip else ""
    yield (
        f"Counters by {counters.source}{chip}: {counters.kernels} launches, "
        f"{len(counters.per_kernel)} kernel names. Their durations are those of one kernel "
        "at a time with emptied caches, and not the training's"
    )
    for name, reason in counters.missing.items():
        yield f"Not counted, {name}: {reason}"
    if used is None:
        return
    missing = dict.fromkeys(("L1", "L2"), "its bandwidth was not measured")
    for cache in used.cache_roofs:
        if cache.peak_bytes_per_s is None:
            missing[cache.level] = cache.missing["peak_bytes_per_s"]
        else:
            missing.pop(cache.level, None)
            yield f"{cache.level}: {bytes_rate(cache.peak_bytes_per_s)} by {cache.source}"
    for level, reason in missing.items():
        yield f"No slope for {level}: {reason}"


def _of_trace(trace: PlacedTrace) -> Iterator[str]:
    record = trace.record
    yield from (f"Bound: {record.bound}", *record.findings, *record.advice)
    if isinstance(trace.ceiling, Unknown):
        yield f"No roof: {trace.ceiling.reason}"
    else:
        ceiling, roof = trace.ceiling.ceiling, trace.ceiling.roof
        note = trace.ceiling.instead_of_measured
        yield (
            f"Roof in {ceiling.math_mode}: {flops_rate(roof.peak_flops_per_s)} and "
            f"{bytes_rate(roof.peak_bytes_per_s)}, {ceiling.kind} ({ceiling.source})"
            f"{f'; {note}' if note else ''}"
        )
        for finding in check_ops(trace.ops, roof):
            yield f"{finding.level}: {finding.message}"
    if all(step.device_busy_s is None for step in record.steps):
        yield "No device ran anything in the trace: times of ops are their own on the host"
    yield _of_known_work(trace.ops)
    if (counters := record.counters) is not None:
        sums = ((counters.flops, "FLOP executed"), (counters.dram_bytes, "B of DRAM"))
        known = ", ".join(f"{three_digits(n / 1e9)} G{unit}" for n, unit in sums if n is not None)
        kernels = counted(counters.kernels, "kernel")
        yield f"Counters of {kernels} in the trace{f': {known}' if known else ''}"
        for name, unit in _COUNTED_IN_TRACE.items():
            if name in counters.missing:
                yield f"No {unit} counted: {counters.missing[name]}"


def _of_known_work(places: Places[OpPlace]) -> str:
    sentence = (
        f"{percent(time_share(places.placed))} of the ops' time went to ops whose FLOP and bytes "
        f"are known, {percent(time_share(places.without_flops))} to ops without FLOP, and of "
        f"{percent(time_share(places.unknown))} the work is not known"
    )
    longest = next((op for op in places.unknown if op.share >= _NAMED_SHARE), None)
    if longest is None:
        return sentence
    return f"{sentence}, most of it in {longest.time.op} ({longest.time.missing['flops']})"


def caveats(runs: Sequence[Run]) -> dict[str, int]:
    """Return of how many runs, points or configurations each caveat of the report speaks."""
    points = [run.point for run in runs if run.point]
    repeats = [group.repeats() for group in group_runs(runs)]
    machines = [len(one.machines) for one in repeats]
    return {
        "modelled": sum(point.intensity_counted is None for point in points),
        "counted": sum(point.intensity_counted is not None for point in points),
        "unsure": sum(not point.bound_sure for point in points),
        "datasheet": sum(point.ceiling.kind == "datasheet" for point in points),
        "reads_images": sum(run.config.reads_images for run in recorded(runs)),
        "imported": sum(run.imported is not None for run in runs),
        "single": sum(one.log_variance is None for one in repeats),
        "several_machines": sum(number > 1 for number in machines),
        "unknown_machine": int(min(machines, default=0) == 0),
        "runs": len(runs),
    }


# How to make its runs again


def commands(runs: Sequence[Run]) -> list[tuple[list[int], str]]:
    """Return the command that repeats runs, for a POSIX shell, with their numbers."""
    alike = grouped(runs, _command)
    return [([run.number for run in those], command) for command, those in alike.items()]


def _command(run: Run) -> str:
    if script := _script(run):  # its arguments are as a shell takes them
        return f"mlproject watch -- python {run.config.arch.removeprefix('script:')} " + script.get(
            "arguments", ""
        )
    return shlex.join(["mlproject", "run", *run_options(run.config)])


def _script(run: Run) -> Mapping[str, str]:
    return run.record.script if run.record else {}


def matrix(runs: Sequence[Run]) -> str:
    """Return the matrix of `mlproject sweep` that measures the same configurations, as YAML."""
    labels = {"repeat", "campaign", "env"}
    asked = [
        run.config.model_dump(exclude=labels, exclude_defaults=True) | {"arch": run.config.arch}
        for run in runs
        if not _script(run)
    ]
    alike = grouped(asked, lambda one: tuple(sorted(one.items())))
    repeated = [{**those[0], "repeats": len(those)} for those in alike.values()]
    blocks = {"blocks": [*_blocks(repeated)]} if repeated else {}
    return yaml.safe_dump(blocks, sort_keys=False, default_flow_style=None).strip()


def _blocks(asked: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the fewest products of lists that have all of `asked`, none twice."""
    usual = {name: field.default for name, field in RunConfig.model_fields.items()}
    asked = [{name: one.get(name, usual.get(name)) for name in chain.from_iterable(asked)}
             for one in asked]  # fmt: skip
    values = {name: [*dict.fromkeys(one[name] for one in asked)] for name in asked[0]}
    several = [name for name in values if len(values[name]) > 1]
    if "repeats" in several or prod(map(len, values.values())) != len(asked):
        name = min(several, key=lambda name: (name != "repeats", len(values[name])))
        for part in grouped(asked, itemgetter(name)).values():
            yield from _blocks(part)
        return
    yield {name: those if len(those) > 1 else those[0] for name, those in values.items()}


# How its runs were measured, and what their work and their roofs say


_CLOCKS = {
    "cpu": "On a processor an iteration is timed by the monotonic clock of the process.",
    "cuda": "On CUDA an iteration is timed by events, which are read after the window.",
    "mps": "On MPS the device is synchronised after each iteration.",
}


def method(runs: Sequence[Run]) -> list[str]:
    """Return how the runs were timed."""
    backends = {run.backend for run in recorded(runs)}
    scripts = any(_script(run) for run in recorded(runs))
    return [
        "Each run trains in a process of its own; a window of iterations is timed after a warm-up.",
        "Throughput is the samples of the window over its wall time. The device is synchronised "
        "at both ends of the window and not between.",
        *(clock for backend, clock in _CLOCKS.items() if backend in backends),
        "The warm-up ends when the device is warm and iterations are as fast as the fastest ones "
        "before, the window when its pace is known, or both at the limits that the run was given. "
        "What is left of a transient at the beginning is left out and said.",
        *(["An iteration of a script is from one step of its optimizer to the next."] * scripts),
        "A verdict says whether a run can be trusted: suspect where something disturbed it.",
    ]  # fmt: skip


def complexity(runs: Sequence[Run]) -> list[str]:
    """Return what the cost model says of each model: work, side of the ridge, memory."""
    groups = [group for group in group_runs(runs) if group.points and group.first.record]
    said = []
    for (label, sample), those in grouped(groups, lambda g: (g.model_label, g.sample)).items():
        most = max(those, key=lambda one: one.batch_size or 0)
        record = most.first.record
        if record is None or (work := record.complexity) is None:
            continue
        words = (
            f"{label}: a training step computes {three_digits(work.step_flops_per_sample / 1e9)}"
        )
        words += f" GFLOP per {sample}; batch {most.batch_size} needs "
        words += f"{three_digits(work.memory.total_bytes / 1e9)} GB"
        device = record.environment and record.environment.device
        if device and device.memory_bytes:
            words += f" of {three_digits(device.memory_bytes / 1e9)} GB"
        said.append(f"{words}.")
        said += dict.fromkeys(_side(one) for one in fastest(those).values())
    return said


def _side(group: Group) -> str:
    """On which side of the ridge the work of a configuration stands, fused or not."""
    point, roof = group.points[0], group.points[0].roof
    low, high, ridge = point.intensity_min, point.intensity_max, roof.ridge_flop_per_byte
    ends = f"{three_digits(low)} FLOP/byte unfused and {three_digits(high)} fused"
    if low >= ridge:
        side = "arithmetic is its roof, however its operations are fused"
    elif high < ridge:
        side = "memory traffic is its roof, even if all is fused"
    else:
        side = "memory traffic is its roof unless operations are fused"
    return f"{group.label}: {ends}, {group.env}'s ridge is {three_digits(ridge)}; {side}."


def roofs(runs: Sequence[Run]) -> list[str]:
    """Return the formula of the roofline, and the ridge of each machine and arithmetic."""
    points = [(run.env, run.point) for run in runs if run.point]
    said = [
        "A step can attain at most min(peak FLOP/s, FLOP/byte x peak byte/s). Both are equal at "
        "the ridge, peak FLOP/s over peak byte/s: left of it memory traffic is the roof, right of "
        "it arithmetic.",
    ]
    for env, of_env in grouped(points, itemgetter(0)).items():
        ridges = {p.ceiling.math_mode: p.roof.ridge_flop_per_byte for _, p in of_env}
        least = min(ridges, key=lambda mode: ridges[mode])
        words = f"{env}: the ridge is {three_digits(ridges.pop(least))} FLOP/byte in {least}"
        for mode, ridge in ridges.items():
            words += f", {three_digits(ridge)} in {mode}"
        said.append(f"{words}.")
    return said if points else []
