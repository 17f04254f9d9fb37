"""The report's sentences of runs: results, work and roofs; how each was measured, and is again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from operator import attrgetter, itemgetter
from typing import Any

import yaml

from analysis.findings.bottlenecks import loss_of
from analysis.findings.differences import uplifts
from analysis.runs.groups import Group, fastest, group_runs, newest_accounts
from analysis.runs.place import PlacedProfile
from analysis.runs.run import TOKENS_PER_S, Run, recorded
from analysis.table import grouped, utc
from analysis.traces.placed import PlacedTrace
from analysis.words import (
    counted,
    flops_rate,
    percent,
    percent_interval,
    ratio_digits,
    three_digits,
)
from bench.config import RunConfig, run_options

#: What limits the speed, as the end of a sentence.
_BOUND = {
    "compute": "arithmetic is what limits it",
    "memory": "memory traffic is what limits it",
    "input": "waiting for {sample}s is what limits it",
    "slow kernels": "kernels that are slower than their roof are what limits it",
    "idle": "the device waits for its host to launch work",
    "host": "what the host does between ops is what limits it",
    "communication": "communication is what limits it",
    "not known": (
        "neither arithmetic nor memory traffic explains most of its time, and no step that "
        "was profiled says what does"
    ),
}


def opening(runs: Sequence[Run]) -> list[str]:
    """Return the three sentences, two more for each further kind of sample; two of no result.

    What is impossible is the fastest only where nothing else was measured.
    """
    groups = group_runs(runs)
    if not groups:
        return _nothing(runs)
    possible = [one for one in groups if all(run.verdict != "invalid" for run in one.runs)]
    measured = possible or groups
    kinds = grouped(measured, lambda one: one.sample)  # images/s and sequences/s have no order
    sentences = []
    for sample, of_kind in kinds.items():
        words = f" of {sample}s" if len(kinds) > 1 else ""
        best = max(of_kind, key=attrgetter("samples_per_s"))
        sentences.append(f"{_speed(best, of_kind, words)}{_against_fp32(best, runs)}.")
        sentences.append(f"{_roof(best, of_kind, words)}.")
        sentences += [f"{said}." for said in loss_of(best, runs) or () if said]
    return [*sentences, f"{_sureness(runs, measured)}."]


def _nothing(runs: Sequence[Run]) -> list[str]:
    loaders = [rate for run in runs if (rate := run.metrics.get("loader_images_per_s"))]
    if loaders:
        alone = f"{counted(len(loaders), 'run')} loaded images alone"
        return [f"No model was trained: {alone}, with up to {three_digits(max(loaders))} images/s."]
    why = next((f": {run.outcome} ({run.reason})" for run in runs if run.reason), "")
    return [
        f"None of {counted(len(runs), 'run')} ended with a measurement{why}.",
        "The list of problems has the reason of each.",
    ]


def _configuration(one: Group) -> str:
    batch = f" at batch {one.batch_size}" if one.batch_size else ""
    return f"{one.model_label} in {one.precision_label}{batch}"


def _speed(best: Group, measured: Sequence[Group], of_kind: str) -> str:
    rate = f"{three_digits(best.samples_per_s)} {best.first.rate_unit}"
    if (tokens_per_s := best.mean(TOKENS_PER_S)) is not None:
        rate += f" ({three_digits(tokens_per_s)} tokens/s)"
    if (deviation := best.repeats().relative_deviation) is not None:
        rate += f" with a deviation of {percent(deviation)} between its repeats"
    if len(measured) == 1:
        return f"{best.env} trains {_configuration(best)} with {rate}"
    machines = {one.env for one in measured}
    among = f" on {len(machines)} machines" if len(machines) > 1 else ""
    return (
        f"Of {len(measured)} configurations{of_kind}{among}, {_configuration(best)} on {best.env} "
        f"was the fastest measured: {rate}"
    )


def _against_fp32(best: Group, runs: Sequence[Run]) -> str:
    """What its precision gave, where fp32 was measured beside it, by the table's own verdict."""
    known = next((one.found for one in uplifts(runs) if one.low == best and one.found), None)
    if known is None:
        return ""
    if known.judgement == "undecided":
        return f"; whether that is more than in fp32 is undecided: {known.estimate.words}"
    if known.judgement == "tie":
        return ", as many as in fp32"
    return f", {ratio_digits(known.estimate.ratio)} times as many as in fp32"


def _roof(best: Group, measured: Sequence[Group], of_kind: str) -> str:
    if best.of_the_roof is None:
        reason = next((run.refusal for run in best.runs if run.refusal), "no reason recorded")
        return f"It has no place under a roof: {reason}"
    point, sample, gflops = best.points[0], best.sample, best.mean("attained_gflops")
    attained = point.attained_flops_per_s if gflops is None else 1e9 * gflops
    modelled = " by modelled work" if best.first.imported else ""
    unsure = "" if point.bound_sure else ", as far as modelled traffic can say"
    if best.first.imported and point.bound == "not known":
        unsure = f", or waiting for {sample}s, of which its file says nothing"
    reaches = (
        f"It reaches{modelled} {flops_rate(attained)}, {percent_interval(*best.of_the_roof)} of "
        f"what the roof of its machine allows in {point.ceiling.math_mode}: "
        f"{_BOUND[point.bound].format(sample=sample)}{unsure}"
    )
    shares = [(of[0], one) for one in measured if (of := one.of_the_roof)]
    (least, low), (most, high) = (choose(shares, key=itemgetter(0)) for choose in (min, max))
    ends = percent(least), percent(most)
    if len(shares) == 1:
        return reaches
    if ends[0] == ends[1]:
        return f"{reaches}; that share is the same in all configurations{of_kind}"
    return (
        f"{reaches}; over all configurations{of_kind} the share is from {ends[0]} "
        f"({_configuration(low)}) to {ends[1]} ({_configuration(high)})"
    )


def _sureness(runs: Sequence[Run], measured: Sequence[Group]) -> str:
    doubtful = sum(bool(run.problems) for run in runs)
    needs = f"{doubtful} of {counted(len(runs), 'run')} {'needs' if doubtful == 1 else 'need'} care"
    listed = "for the reasons that are listed below as problems"
    care = f"{needs}, {listed}" if doubtful else "No run is in doubt"
    accounts = [account.is_disturbed for _, account in newest_accounts(runs)]
    if unsure := sum(accounts):
        care += f"; of {counted(len(accounts), 'account')} of a step {unsure} cannot tell its "
        care += "largest parts apart"
    single = sum(one.repeats().count == 1 for one in measured)
    if not single:
        return f"{care}, and every configuration was repeated"
    if len(measured) == 1:
        return f"{care}; it ran once, so nothing is known of how much repeats would differ"
    which = "each configuration" if single == len(measured) else f"{single} of the configurations"
    return f"{care}; {which} ran once, so differences of a few percent between them say nothing"


def summary(
    runs: Sequence[Run], profiles: Sequence[PlacedProfile], traces: Sequence[PlacedTrace] = ()
) -> str:
    """Return how many runs, profiles and traces there are, and where and when they ran."""
    others = [counted(len(profiles), "profile")] * bool(profiles)
    if not runs:
        traced = f"{counted(len(traces), 'trace')} that other programs recorded"
        return f"{', and '.join(others + [traced] * bool(traces))}."
    others += [counted(len(traces), "trace")] * bool(traces)
    counts = (
        (sum(run.outcome != "ok" for run in runs), "without a result"),
        (sum(run.imported is not None for run in runs), "imported"),
    )
    notes = ", ".join(f"{number} {words}" for number, words in counts if number)
    created = sorted(run.record.created for run in runs if run.record)
    ends = list(dict.fromkeys(utc(moment) for moment in (*created[:1], *created[-1:])))
    when = f", {'between' if len(ends) > 1 else 'on'} {' and '.join(ends)}" if ends else ""
    machines = counted(len({run.env for run in runs}), "machine")
    ran = f"{counted(len(runs), 'run')}{f' ({notes})' if notes else ''} on {machines}{when}"
    return f"{', and '.join([ran, *others])}."


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
    if script := _script(run):
        return script.get("command", "# the command of this script is not recorded")
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


_IMPORTED = "Imported runs were timed by other programs: their files"


def method(runs: Sequence[Run]) -> list[str]:
    """Return how the runs were timed."""
    backends = {run.backend for run in recorded(runs)}
    scripts = any(_script(run) for run in recorded(runs))
    imported = [f"{_IMPORTED} say nothing of it."] if len(recorded(runs)) < len(runs) else []
    if not backends:
        return imported
    return [
        "Each run trains in a separate process; a window of iterations is timed after a warm-up.",
        "Throughput is the samples of the window over its wall time. The device is synchronised "
        "at both ends of the window.",
        *(clock for backend, clock in _CLOCKS.items() if backend in backends),
        "The warm-up ends when the device is warm and iterations are as fast as the fastest ones "
        "before, the window when its pace is known, or both at the limits that the run was given. "
        "What is left of a transient at the beginning is left out and said.",
        *(["An iteration of a script is from one step of its optimizer to the next."] * scripts),
        "A verdict says whether a run can be trusted: suspect where something disturbed it.",
        *imported,
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
        said.append(f"{words} by the cost model.")
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
