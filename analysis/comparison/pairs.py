"""Which configurations of A and B are compared, and which have no counterpart.

A setting distinguishes the two sides if no value of it occurs on both: `precision` where A is fp32
and B amp, `env` where they are of two machines. Runs are paired where all other settings agree:
those that ran, and between two machines also those that were asked for alike, such as `amp` or
`threads=auto`. A batch size is only ever paired with the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from analysis.runs.groups import Group, group_runs
from analysis.runs.run import Run
from analysis.runs.settings import (
    OF_PRECISION,
    OF_WORK,
    Identity,
    is_implied_by,
    same_configuration,
)
from analysis.table import grouped
from bench.errors import UserError

_MACHINE = frozenset({"env", "device"})
_alike = partial(same_configuration, by="asked")


class Alone(NamedTuple):
    """A configuration that is `only in A`, `only in B`, or of A and `crashed` in B; and why."""

    group: Group
    verdict: str
    because: str


@dataclass(frozen=True)
class Pairing:
    """Pairs of configurations by one metric, and what has no counterpart.

    `differing` are the settings that distinguish A from B; `software` is what else differs overall;
    `left_out` names runs that cannot be compared, with the reason.
    """

    metric: str
    differing: tuple[str, ...]
    pairs: tuple[tuple[Group, Group], ...]
    alone: tuple[Alone, ...]
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
    one, other = _Side("A", a, metric), _Side("B", b, metric)
    one.require_groups()
    failed = [run.identity for run in b if run.outcome != "ok"]
    if other.groups:
        differing = _distinguishing(one.identities, other.identities)
    else:
        differing = _of_failed(one.identities, failed)
    pairs = agreeing_pairs(one.groups, other.groups, differing)
    used = {id(group) for pair in pairs for group in pair}
    alone = []
    for side, counterpart in ((one, other), (other, one)):
        for group in side.groups:
            if id(group) not in used:
                of_failed = (_alike(group.identity, run, differing) for run in failed)
                crashed = side is one and any(of_failed)
                verdict = "crashed" if crashed else f"only in {side.letter}"
                alone.append(Alone(group, verdict, counterpart.why_without(group, differing)))
    if not pairs and all(found.verdict != "crashed" for found in alone):
        other.require_groups()
        raise UserError(_no_pair(one.identities, other.identities, differing))
    return Pairing(
        metric=metric,
        differing=tuple(name for name in differing if not is_implied_by(name, differing)),
        pairs=tuple(pairs),
        alone=tuple(alone),
        software=tuple(_software(a, b)),
        left_out=(*one.left_out, *other.left_out),
    )


def agreeing_pairs(
    ours: Sequence[Group], theirs: Sequence[Group], apart_from: Collection[str]
) -> list[tuple[Group, Group]]:
    """Return the pairs of two sides that have the same settings but for `apart_from`.

    Where these hold the machine, settings that were asked for alike agree too; of several such
    counterparts those count that were asked for alike throughout.
    """
    machines = "env" in apart_from or "device" in apart_from
    work = [name for name in ("arch", *sorted(OF_WORK)) if name not in apart_from]
    of_work = grouped(theirs, lambda other: tuple(map(other.identity.ran.get, work)))
    pairs = []
    for one in ours:
        a = one.identity
        found = [
            other
            for other in of_work.get(tuple(map(a.ran.get, work)), [])
            if same_configuration(a, other.identity, apart_from, by="asked" if machines else "ran")
        ]
        if machines:
            names = a.ran.keys() - set(apart_from) - OF_WORK
            alike = [b for b in found if all(a.asked_alike(b.identity, name) for name in names)]
            found = alike or found
        pairs += [(one, other) for other in found]
    return pairs


class _Side:
    def __init__(self, letter: str, runs: Sequence[Run], metric: str) -> None:
        self.letter, self.runs, self.metric = letter, runs, metric
        self.unusable = {run.name: why for run in runs if (why := _why_unusable(run, metric))}
        self.groups = group_runs([run for run in runs if run.name not in self.unusable], metric)
        self.identities = [group.identity for group in self.groups]
        labels = {run.name: run.label for run in runs}
        self.left_out = [f"{name} ({labels[name]}): {why}" for name, why in self.unusable.items()]

    def require_groups(self) -> None:
        """Raise `UserError` where no run can be compared."""
        if not self.groups:
            why = next(iter(self.left_out), "no run matches")
            count = f"none of its {len(self.runs)} runs has a {self.metric} to compare"
            raise UserError(f"{self.letter}: {count} ({why})")

    def why_without(self, group: Group, differing: Collection[str]) -> str:
        """Why it has no counterpart: a run of it that failed, other batch sizes, or nothing."""
        for run in self.runs:
            if run.name in self.unusable and _alike(group.identity, run.identity, differing):
                return f"{self.letter} has no result: {self.unusable[run.name]}"
        apart_from = {*differing, "batch_size"}
        near = [one for one in self.groups if _alike(group.identity, one.identity, apart_from)]
        if of_size := [other for other in near if other.batch_size == group.batch_size]:
            ours, theirs = group.identity.ran, of_size[0].identity.ran
            names = sorted(n for n in ours.keys() - set(differing) if ours[n] != theirs.get(n))
            return f"{self.letter} ran with {', '.join(f'{n} {theirs.get(n)}' for n in names)}"
        if sizes := sorted({other.batch_size for other in near if other.batch_size is not None}):
            return f"{self.letter} has batch {', '.join(map(str, sizes))}"
        return f"not measured in {self.letter}"


def _why_unusable(run: Run, metric: str) -> str:
    """Why a run cannot be compared: no result, an invalid one, or not the metric."""
    if run.outcome != "ok":
        return f"{run.outcome}, {run.reason or 'no reason recorded'}"
    if run.verdict == "invalid":
        return "; ".join(run.problems)
    if run.usable(metric) is not None:
        return ""
    value = run.metric(metric)
    return f"no {metric}" if value is None else f"{metric} is {value:g}, which has no ratio"


def _distinguishing(a: Sequence[Identity], b: Sequence[Identity]) -> tuple[str, ...]:
    """The settings of which no value that ran occurs on both sides.

    Between two machines a value that was asked for on both sides is one too. The sizes of batches
    never distinguish: another batch is another work.
    """
    names = sorted({name for one in (*a, *b) for name in one.ran})
    ran = [name for name in names if not _ran(a, name) & _ran(b, name)]
    if _MACHINE.intersection(ran):
        ran = [name for name in ran if name == "backend" or not _asked(a, name) & _asked(b, name)]
    if "precision" in ran and "depthwise_fp32" in names:
        ran = sorted({*ran, *OF_PRECISION})
    return tuple(name for name in ran if name != "batch_size")


def _of_failed(a: Sequence[Identity], failed: Sequence[Identity]) -> tuple[str, ...]:
    """The settings of failed runs that distinguish them: neither `auto` nor what is not known."""
    return tuple(
        name
        for name in _distinguishing(a, failed)
        if _ran(failed, name) - {None, "auto"} and not _asked(a, name) & _asked(failed, name)
    )


def _ran(side: Sequence[Identity], name: str) -> set[str | None]:
    """The values of a setting; None where some run does not say."""
    return {one.ran.get(name) for one in side}


def _asked(side: Sequence[Identity], name: str) -> set[str | None]:
    return {value for one in side for value in one.asked_for(name)} - {None}


def _no_pair(a: Sequence[Identity], b: Sequence[Identity], differing: Collection[str]) -> str:
    pairs = [(one, other) for one in a for other in b]
    ignored = {*differing, "batch_size"}
    if any(_alike(one, other, ignored) for one, other in pairs):
        sizes = [sorted(map(str, _ran(side, "batch_size"))) for side in (a, b)]
        ours, theirs = (", ".join(sorted(side, key=len)) for side in sizes)
        return (
            f"A has batch {ours} and B batch {theirs}: different batch sizes are not compared; "
            "mlproject report has a table of the gains of larger batches"
        )
    differences = (
        {name for name, _ in set(one.ran.items()) ^ set(other.ran.items())} - set(differing)
        for one, other in pairs
    )
    nearest = min(map(sorted, differences), key=len)
    return (
        "no configuration of A agrees with one of B in all other settings; the nearest two "
        f"differ in {', '.join(nearest)}: choose sets that differ in one thing"
    )


def _software(a: Sequence[Run], b: Sequence[Run]) -> Iterator[str]:
    """`torch: A 2.11.0, B 2.15.0`, for what is not the same throughout."""
    for name in sorted({name for run in (*a, *b) for name in run.software}):
        ours, theirs = (
            " and ".join(sorted({run.software.get(name, "unknown") for run in side}))
            for side in (a, b)
        )
        if ours != theirs:
            yield f"{name}: A {ours}, B {theirs}"
