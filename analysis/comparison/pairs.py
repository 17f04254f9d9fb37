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

from analysis.presentation.table import grouped
from analysis.presentation.words import counted
from analysis.runs.groups import Group, group_runs
from analysis.runs.run import Run
from analysis.runs.settings import (
    OF_PRECISION,
    OF_WORK,
    Identity,
    is_implied_by,
    same_configuration,
)
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
    in_a = {run.record_id or run.name for run in a}  # of a run on disk and on a server the same
    if both := sorted(run.name for run in b if (run.record_id or run.name) in in_a):
        raise UserError(f"run {both[0]} is in A and in B: choose two sets without a common run")
    ours, theirs = _Candidates("A", a, metric), _Candidates("B", b, metric)
    ours.require_groups()
    failed = [run.identity for run in b if run.outcome != "ok"]
    if theirs.groups:
        differing = _distinguishing(ours.identities, theirs.identities)
    else:
        differing = _of_failed(ours.identities, failed)
    pairs = agreeing_pairs(ours.groups, theirs.groups, differing)
    used = {id(group) for pair in pairs for group in pair}
    alone = []
    for side, counterpart in ((ours, theirs), (theirs, ours)):
        for group in side.groups:
            if id(group) not in used:
                of_failed = (_alike(group.identity, run, differing) for run in failed)
                crashed = side is ours and any(of_failed)
                verdict = "crashed" if crashed else f"only in {side.letter}"
                why = counterpart.why_without(group.identity, differing)
                alone.append(Alone(group, verdict, why))
    if not pairs and all(unpaired.verdict != "crashed" for unpaired in alone):
        theirs.require_groups()
        apart = (_apart(x, y, differing) for x in ours.identities for y in theirs.identities)
        nearest = min(map(sorted, apart), key=len)
        raise UserError(
            "no configuration of A agrees with one of B in all other settings; the nearest two "
            f"differ in {', '.join(nearest)}: choose sets that differ in one thing, which is not "
            "the batch size"
        )
    return Pairing(
        metric=metric,
        differing=tuple(name for name in differing if not is_implied_by(name, differing)),
        pairs=tuple(pairs),
        alone=tuple(alone),
        software=tuple(_software(a, b)),
        left_out=(*ours.left_out, *theirs.left_out),
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


class _Candidates:
    """The runs of a side by their configurations, and those that cannot be compared, with why."""

    def __init__(self, letter: str, runs: Sequence[Run], metric: str) -> None:
        self.letter = letter
        self.unusable = [(run, why) for run in runs if (why := _why_unusable(run, metric))]
        refused = {run.name for run, _ in self.unusable}
        self.groups = group_runs([run for run in runs if run.name not in refused], metric)
        self.identities = [group.identity for group in self.groups]
        self.left_out = [f"{run.name} ({run.label}): {why}" for run, why in self.unusable]
        self._none = f"{letter}: none of {counted(len(runs), 'run')} has a {metric} to compare"

    def require_groups(self) -> None:
        """Raise `UserError` where no run can be compared."""
        if not self.groups:
            raise UserError(f"{self._none} ({next(iter(self.left_out), 'no run matches')})")

    def why_without(self, identity: Identity, differing: Collection[str]) -> str:
        """Why it has no counterpart: a run of it that failed, else what the nearest ran with."""
        for run, why in self.unusable:
            if _alike(identity, run.identity, differing):
                return f"{self.letter} has no result: {why}"
        if not self.groups:
            return f"{self.letter} has no result"
        nearest = min((_apart(identity, other, differing) for other in self.identities), key=len)
        words = ", ".join(f"{name} {value}" for name, value in nearest.items())
        return f"{self.letter} ran with {words}"


def _apart(one: Identity, other: Identity, differing: Collection[str]) -> dict[str, str | None]:
    """The settings besides `differing` in which `other` ran otherwise, with its values."""
    names = sorted((one.ran.keys() | other.ran.keys()) - set(differing))
    return {n: other.ran.get(n) for n in names if one.ran.get(n) != other.ran.get(n)}


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


def _software(a: Sequence[Run], b: Sequence[Run]) -> Iterator[str]:
    """`torch: A 2.11.0, B 2.15.0`, for what is not the same throughout."""
    for name in sorted({name for run in (*a, *b) for name in run.software}):
        ours, theirs = (
            " and ".join(sorted({run.software.get(name, "unknown") for run in side}))
            for side in (a, b)
        )
        if ours != theirs:
            yield f"{name}: A {ours}, B {theirs}"
