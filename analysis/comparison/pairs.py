"""Which configurations of A and B are compared, and which have no counterpart.

A setting distinguishes the two sides if no value of it occurs on both: `precision` where A is fp32
and B amp, `env` where they are of two machines. Runs are paired where all other settings agree:
those that ran, and between two machines also those that were asked for alike, such as `amp` or
`threads=auto`. A batch size is only ever paired with the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analysis.runs.groups import Group, agree, agreeing_pairs, group_runs
from analysis.runs.run import Run
from analysis.runs.what_ran import OF_PRECISION, follows
from bench.errors import UserError

_MACHINE = frozenset({"env", "device"})


@dataclass(frozen=True)
class Pairing:
    """Pairs of configurations by one metric, and what has no counterpart.

    `differing` are the settings that distinguish A from B. `crashed` are the configurations of A
    whose runs of B all ended without a result, `only_a` the others without a counterpart.
    `why_alone` holds the reason why a group of these, or of `only_b`, has no counterpart, by the
    names of its runs; `software` is what else differs overall; `left_out` names runs without the
    metric, without a result or with an invalid one, with the reason.
    """

    metric: str
    differing: tuple[str, ...]
    pairs: tuple[tuple[Group, Group], ...]
    crashed: tuple[Group, ...]
    only_a: tuple[Group, ...]
    only_b: tuple[Group, ...]
    why_alone: Mapping[tuple[str, ...], str]
    software: tuple[str, ...]
    left_out: tuple[str, ...]


def pair_runs(a: Sequence[Run], b: Sequence[Run], metric: str) -> Pairing:
    """Pair the configurations of `a` and `b`.

    Raises `UserError` where a run is on both sides, where a side has no run with the metric, or
    where no two configurations agree; but not where a configuration of `a` crashed in `b`.
    """
    ours = {run.record_id or run.name for run in a}  # of a run on disk and on a server the same
    if both := sorted(run.name for run in b if (run.record_id or run.name) in ours):
        raise UserError(f"run {both[0]} is in A and in B: choose two sets without a common run")
    groups_a, groups_b = _grouped("A", a, metric), _groups(b, metric)
    failed = [Group((run,)) for run in b if run.outcome != "ok"]
    differing = _distinguishing(groups_a, groups_b) if groups_b else _of_failed(groups_a, failed)
    pairs = agreeing_pairs(groups_a, groups_b, differing)
    used = {id(group) for pair in pairs for group in pair}
    alone = [group for group in groups_a if id(group) not in used]
    crashed = [
        group
        for group in alone
        if any(agree(group, other, differing, as_asked=True) for other in failed)
    ]
    if not pairs and not crashed:
        _grouped("B", b, metric)
        raise UserError(_no_pair(groups_a, groups_b, differing))
    only_b = tuple(group for group in groups_b if id(group) not in used)
    of_a, of_b = _Side("A", a, groups_a), _Side("B", b, groups_b)
    why_alone = {
        group.names: _why_alone(group, other, metric, differing)
        for groups, other in ((alone, of_b), (only_b, of_a))
        for group in groups
    }
    return Pairing(
        metric=metric,
        differing=tuple(name for name in differing if not follows(name, differing)),
        pairs=tuple(pairs),
        crashed=tuple(crashed),
        only_a=tuple(group for group in alone if group not in crashed),
        only_b=only_b,
        why_alone=why_alone,
        software=_software(a, b),
        left_out=tuple(_why_left_out(run, metric) for run in (*a, *b) if not _counts(run, metric)),
    )


def _counts(run: Run, metric: str) -> bool:
    """Whether a run can be compared: it has the metric, and no numbers that cannot be."""
    return run.usable(metric) is not None and run.verdict != "invalid"


def _groups(runs: Sequence[Run], metric: str) -> list[Group]:
    return group_runs([run for run in runs if _counts(run, metric)], metric)


def _grouped(side: str, runs: Sequence[Run], metric: str) -> list[Group]:
    groups = _groups(runs, metric)
    if groups:
        return groups
    why = _why_left_out(runs[0], metric) if runs else "no run matches"
    raise UserError(f"{side}: none of its {len(runs)} runs has a {metric} to compare ({why})")


def _why_left_out(run: Run, metric: str) -> str:
    return f"{run.name} ({run.label}): {_why_unusable(run, metric)}"


def _why_unusable(run: Run, metric: str) -> str:
    if run.outcome != "ok":
        return f"{run.outcome}, {run.reason or 'no reason recorded'}"
    if run.verdict == "invalid":
        return "; ".join(run.problems)
    value = run.metric(metric)
    return f"no {metric}" if value is None else f"{metric} is {value:g}, which has no ratio"


class _Side(NamedTuple):
    letter: str
    runs: Sequence[Run]
    groups: Sequence[Group]


def _why_alone(group: Group, side: _Side, metric: str, differing: Collection[str]) -> str:
    """Why a side has no counterpart: a run of it that failed, other batch sizes, or nothing."""
    for run in side.runs:
        if not _counts(run, metric) and agree(group, Group((run,)), differing, as_asked=True):
            return f"{side.letter} has no result: {_why_unusable(run, metric)}"
    near = [
        other
        for other in side.groups
        if agree(group, other, {*differing, "batch_size"}, as_asked=True)
    ]
    if of_size := [other for other in near if other.batch_size == group.batch_size]:
        ours, theirs = group.first.settings, of_size[0].first.settings
        names = sorted(n for n in ours.keys() - set(differing) if ours[n] != theirs.get(n))
        return f"{side.letter} ran with {', '.join(f'{n} {theirs.get(n)}' for n in names)}"
    if sizes := sorted({other.batch_size for other in near if other.batch_size is not None}):
        return f"{side.letter} has batch {', '.join(map(str, sizes))}"
    return f"not measured in {side.letter}"


def _distinguishing(a: Sequence[Group], b: Sequence[Group]) -> tuple[str, ...]:
    """The settings of which no value that ran occurs on both sides.

    Between two machines a value that was asked for on both sides is one too. The sizes of batches
    never distinguish: another batch is another work.
    """
    names = sorted({name for group in (*a, *b) for name in group.first.settings})
    ran = [name for name in names if not _ran(a, name) & _ran(b, name)]
    if _MACHINE.intersection(ran):
        ran = [name for name in ran if name == "backend" or not _asked(a, name) & _asked(b, name)]
    if "precision" in ran and "depthwise_fp32" in names:
        ran = sorted({*ran, *OF_PRECISION})
    return tuple(name for name in ran if name != "batch_size")


def _of_failed(a: Sequence[Group], failed: Sequence[Group]) -> tuple[str, ...]:
    """The settings of failed runs that distinguish them: neither `auto` nor what is not known."""
    return tuple(
        name
        for name in _distinguishing(a, failed)
        if _ran(failed, name) - {None, "auto"} and not _asked(a, name) & _asked(failed, name)
    )


def _ran(groups: Iterable[Group], name: str) -> set[str | None]:
    """The values of a setting; None where some run does not say."""
    return {group.first.settings.get(name) for group in groups}


def _asked(groups: Iterable[Group], name: str) -> set[str | None]:
    return {value for group in groups for value in group.asked_for(name) if value is not None}


def _no_pair(a: Sequence[Group], b: Sequence[Group], differing: Collection[str]) -> str:
    """Name the settings in which the two nearest configurations disagree."""
    sizes = [
        sorted({f"{group.batch_size}" for group in side}, key=lambda text: (len(text), text))
        for side in (a, b)
    ]
    ignored = {*differing, "batch_size"}
    if any(agree(one, other, ignored, as_asked=True) for one in a for other in b):
        return (
            f"A has batch {', '.join(sizes[0])} and B batch {', '.join(sizes[1])}: different batch "
            "sizes are not compared; mlproject report has a table of the gains of larger batches"
        )
    differences = (
        sorted(
            dict(set(one.first.settings.items()) ^ set(other.first.settings.items())).keys()
            - set(differing)
        )
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
