"""The report's sentences of runs: what they show, and how each is made again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import yaml

from analysis.findings.bottlenecks import loss_of
from analysis.presentation.table import grouped, utc
from analysis.presentation.words import (
    counted,
    flops_rate,
    percent,
    percent_interval,
    three_digits,
)
from analysis.runs.groups import Group, Runs, newest_accounts
from analysis.runs.place import PlacedProfile
from analysis.runs.run import TOKENS_PER_S, Run, recorded
from analysis.traces.placed import PlacedTrace
from bench.config import run_options

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


def opening(runs: Runs) -> list[str]:
    """Return the sentences on the fastest configuration of each kind of sample, and how sure.

    What is impossible is the fastest only where nothing else was measured.
    """
    groups = runs.groups
    if not groups:
        return _nothing(runs)
    possible = [group for group in groups if all(run.verdict != "invalid" for run in group.runs)]
    measured = possible or groups
    sentences = []
    # images/s and sequences/s have no order
    for of_kind in grouped(measured, lambda group: group.sample).values():
        best = max(of_kind, key=attrgetter("samples_per_s"))
        sentences += [_speed(best, of_kind), _roof(best)]
        sentences += [words.removesuffix(".") for words in loss_of(best, runs) or () if words]
    return [f"{sentence}." for sentence in [*sentences, _sureness(runs, measured)]]


def _nothing(runs: Runs) -> list[str]:
    loaders = [rate for run in runs if (rate := run.metrics.get("loader_images_per_s"))]
    if loaders:
        alone = f"{counted(len(loaders), 'run')} loaded images alone"
        return [f"No model was trained: {alone}, with up to {three_digits(max(loaders))} images/s."]
    why = next((f": {run.outcome} ({run.reason})" for run in runs if run.reason), "")
    return [
        f"None of {counted(len(runs), 'run')} ended with a measurement{why}.",
        "The list of problems has the reason of each.",
    ]


def _speed(best: Group, measured: Sequence[Group]) -> str:
    rate = f"{three_digits(best.samples_per_s)} {best.first.rate_unit}"
    if (tokens_per_s := best.mean(TOKENS_PER_S)) is not None:
        rate += f" ({three_digits(tokens_per_s)} tokens/s)"
    if (deviation := best.repeats().relative_deviation) is not None:
        rate += f" with a deviation of {percent(deviation)} between its repeats"
    batch = f" at batch {best.batch_size}" if best.batch_size else ""
    trains = f"{best.env} trains {best.model_label} in {best.precision_label}{batch} with {rate}"
    if len(measured) == 1:
        return trains
    machines = counted(len({group.env for group in measured}), "machine")
    return f"{trains} (the fastest of {len(measured)} configurations on {machines})"


def _roof(best: Group) -> str:
    if best.of_the_roof is None:
        reason = next((run.refusal for run in best.runs if run.refusal), "no reason recorded")
        return f"It has no place under a roof: {reason}"
    point, sample, gflops = best.points[0], best.sample, best.mean("attained_gflops")
    attained = point.attained_flops_per_s if gflops is None else 1e9 * gflops
    modelled = " by modelled work" if best.first.imported else ""
    pace = best.mean("pace_samples_per_s") if any(run.is_disturbed for run in best.runs) else None
    it = f"At its pace of {three_digits(pace)} {best.first.rate_unit} it" if pace else "It"
    unsure = "" if point.bound_sure else ", as far as modelled traffic can say"
    return (
        f"{it} reaches{modelled} {flops_rate(attained)}, {percent_interval(*best.of_the_roof)} of "
        f"what the roof of its machine allows in {point.ceiling.math_mode}: "
        f"{_BOUND[point.bound].format(sample=sample)}{unsure}"
    )


def _sureness(runs: Runs, measured: Sequence[Group]) -> str:
    doubtful = sum(bool(run.problems) for run in runs)
    why = ", for the reasons listed below as problems" if doubtful else ""
    said = [f"In doubt: {doubtful or 'none'} of {counted(len(runs), 'run')}{why}"]
    accounts = [account.is_disturbed for _, account in newest_accounts(runs)]
    if disturbed := sum(accounts):
        whole = counted(len(accounts), "account")
        said.append(f"the largest part of a step is not sure in {disturbed} of {whole}")
    once = sum(group.repeats().count == 1 for group in measured)
    of_all = f"{once or 'none'} of {counted(len(measured), 'configuration')}"
    said.append(f"measured once, so that nothing is known of how much repeats differ: {of_all}")
    return "; ".join(said)


def summary(
    runs: Runs, profiles: Sequence[PlacedProfile], traces: Sequence[PlacedTrace] = ()
) -> str:
    """Return how many runs, profiles and traces there are, and where and when they ran."""
    parts = []
    if runs:
        failed = sum(run.outcome != "ok" for run in runs)
        imported = sum(run.imported is not None for run in runs)
        counts = {"without a result": failed, "imported": imported}
        notes = ", ".join(f"{number} {words}" for words, number in counts.items() if number)
        # of a device that was not found nobody knows more than `auto`
        machines = counted(len({run.env for run in runs} - {"auto"}) or 1, "machine")
        ran = f"{counted(len(runs), 'run')}{f' ({notes})' if notes else ''} on {machines}"
        if created := {utc(run.record.created) for run in runs if run.record}:
            ends = dict.fromkeys((min(created), max(created)))
            ran += f", {'between' if len(ends) > 1 else 'on'} {' and '.join(ends)}"
        parts.append(ran)
    parts += [counted(len(profiles), "profile")] if profiles else []
    parts += [counted(len(traces), "trace")] if traces else []
    return f"{', and '.join(parts)}."


def counts_of(runs: Runs) -> dict[str, Any]:
    """Return what the words of a report depend on: how many runs, points or configurations."""
    points = [run.point for run in runs if run.point]
    repeats = [group.repeats() for group in runs.groups]
    machines = [len(repeat.machines) for repeat in repeats]
    return {
        "runs": len(runs),
        "points": len(points),
        "modelled": sum(point.intensity_counted is None for point in points),
        "counted": sum(point.intensity_counted is not None for point in points),
        "unsure": sum(not point.bound_sure for point in points),
        "datasheet": sum(point.ceiling.kind == "datasheet" for point in points),
        "reads_images": sum(run.config.reads_images for run in recorded(runs)),
        "imported": sum(run.imported is not None for run in runs),
        "single": sum(repeat.log_variance is None for repeat in repeats),
        "several_machines": sum(number > 1 for number in machines),
        "unknown_machine": int(min(machines, default=0) == 0),
        "backends": {run.backend for run in recorded(runs) if run.outcome == "ok"},
        "scripts": sum(bool(_script(run)) for run in recorded(runs)),
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
        {"arch": run.config.arch} | run.config.model_dump(exclude=labels, exclude_defaults=True)
        for run in runs
        if not _script(run)
    ]
    alike = grouped(asked, lambda settings: tuple(sorted(settings.items())))
    blocks = [{**settings[0], "repeats": len(settings)} for settings in alike.values()]
    whole = {"blocks": blocks} if blocks else {}
    return yaml.safe_dump(whole, sort_keys=False, default_flow_style=None).strip()
