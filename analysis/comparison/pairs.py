"""Two sides of a comparison: what each names, and which configurations of A and B are compared.

A side is `campaign=`, `records=`, run ids, or a filter of MLflow's. A setting distinguishes the two
if no value of it occurs on both sides: `precision` where A is fp32 and B amp, `env` where they are
of two machines. Runs are paired where all other settings agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.runs.groups import Group, group_runs, settings_key
from analysis.runs.placed import Run
from analysis.runs.pull import RecordSet, pull_records
from bench.errors import UserError
from bench.records.folders import read_records

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def read_sides(a: str, b: str) -> tuple[list[Run], list[Run]]:
    """Return the runs that each text names, in the order of their configurations.

    Different machines of one label get a number, on one side or across both. Raises `UserError`
    where nothing matches or a named run is not there, and `TrackingError`.
    """
    one, other = _side(a), _side(b)
    return one.with_unique_labels(other).runs(), other.with_unique_labels(one).runs()


def _side(text: str) -> RecordSet:
    words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
    if not words:
        raise UserError("a side is empty: give campaign=NAME, run ids or an MLflow filter")
    if all(_RUN_ID.fullmatch(word) for word in words):
        return _of_run_ids(words)
    gathered = _gathered(text.strip())
    if not gathered.runs():
        unreadable = f" ({gathered.unreadable[0]})" if gathered.unreadable else ""
        raise UserError(f"{text!r}: no measurement matches{unreadable}")
    return gathered


def _gathered(text: str) -> RecordSet:
    kind, equals, value = text.partition("=")
    if equals and kind == "campaign":
        return pull_records(campaign=value.strip("'\""))
    if equals and kind == "records":
        return RecordSet.of(read_records(Path(value)))
    return pull_records(text)


def _of_run_ids(run_ids: list[str]) -> RecordSet:
    quoted = ", ".join(f"'{run_id}'" for run_id in run_ids)
    gathered = pull_records(f"attributes.run_id IN ({quoted})")
    absent = sorted(set(run_ids) - {run.name for run in gathered.runs()})
    if absent:
        why = next((line for line in gathered.unreadable if absent[0] in line), None)
        raise UserError(f"run {absent[0]}: {why or 'no tracked measurement has this id'}")
    return gathered


@dataclass(frozen=True)
class Pairing:
    """Pairs of configurations, and what has no counterpart.

    `differing` are the settings that distinguish A from B; `software` says what else differs
    overall; `left_out` names runs without the metric or without a result, with the reason.
    """

    differing: tuple[str, ...]
    pairs: tuple[tuple[Group, Group], ...]
    only_a: tuple[Group, ...]
    only_b: tuple[Group, ...]
    software: tuple[str, ...]
    left_out: tuple[str, ...]


def pair_runs(a: Sequence[Run], b: Sequence[Run], metric: str) -> Pairing:
    """Pair the configurations of `a` and `b`.

    Raises `UserError` where a run is on both sides, where a side has no run with the metric, or
    where no two configurations agree.
    """
    if both := sorted({run.name for run in a} & {run.name for run in b}):
        raise UserError(f"run {both[0]} is in A and in B: choose two sets without a common run")
    groups_a, groups_b = _grouped("A", a, metric), _grouped("B", b, metric)
    differing = _distinguishing(groups_a, groups_b)
    keyed_b: dict[object, list[Group]] = {}
    for group in groups_b:
        keyed_b.setdefault(settings_key(group.first, differing), []).append(group)
    pairs = [
        (ours, theirs)
        for ours in groups_a
        for theirs in keyed_b.get(settings_key(ours.first, differing), [])
    ]
    if not pairs:
        raise UserError(_no_pair(groups_a, groups_b))
    used = {id(group) for pair in pairs for group in pair}
    return Pairing(
        differing=differing,
        pairs=tuple(pairs),
        only_a=tuple(group for group in groups_a if id(group) not in used),
        only_b=tuple(group for group in groups_b if id(group) not in used),
        software=_software(a, b),
        left_out=tuple(
            _why_left_out(run, metric) for run in (*a, *b) if run.usable(metric) is None
        ),
    )


def _grouped(side: str, runs: Sequence[Run], metric: str) -> list[Group]:
    groups = group_runs(runs, metric)
    if groups:
        return groups
    why = _why_left_out(runs[0], metric) if runs else "no run matches"
    raise UserError(f"{side}: none of its {len(runs)} runs has a {metric} to compare ({why})")


def _why_left_out(run: Run, metric: str) -> str:
    if run.outcome != "ok":
        return f"{run.name} ({run.label}): {run.outcome}, {run.reason or 'no reason recorded'}"
    value = run.metrics.get(metric)
    what = f"no {metric}" if value is None else f"{metric} is {value:g}, which has no ratio"
    return f"{run.name} ({run.label}): {what}"


def _distinguishing(a: Iterable[Group], b: Iterable[Group]) -> tuple[str, ...]:
    values_a, values_b = _values(a), _values(b)
    names = sorted(values_a.keys() | values_b.keys())
    lacking = {None}
    return tuple(
        name for name in names if not values_a.get(name, lacking) & values_b.get(name, lacking)
    )


def _values(groups: Iterable[Group]) -> dict[str, set[str | None]]:
    """The values of each setting; None where some run does not say."""
    settings = [group.first.settings for group in groups]
    names = {name for each in settings for name in each}
    return {name: {each.get(name) for each in settings} for name in names}


def _no_pair(a: Sequence[Group], b: Sequence[Group]) -> str:
    """Name the settings in which the two nearest configurations disagree."""
    differences = (
        sorted(dict(set(one.first.settings.items()) ^ set(other.first.settings.items())))
        for one in a
        for other in b
    )
    nearest = min(differences, key=len)
    return (
        "no configuration of A agrees with one of B in all other settings; the nearest two "
        f"differ in {', '.join(nearest)}: choose sets that differ in one thing"
    )


def _software(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, ...]:
    """`torch: A 2.11.0, B 2.15.0`, for what is not the same throughout."""
    found = []
    for name in sorted({name for run in (*a, *b) for name in run.software}):
        ours = sorted({run.software.get(name, "unknown") for run in a})
        theirs = sorted({run.software.get(name, "unknown") for run in b})
        if ours != theirs:
            found.append(f"{name}: A {' and '.join(ours)}, B {' and '.join(theirs)}")
    return tuple(found)
