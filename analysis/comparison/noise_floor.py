"""The noise floor of a machine: how small a change `mlproject compare` finds, from its own repeats.

Repeats of one configuration differ only by noise, so their scatter says how large a change has to
be to be found, and their halves against each other (A/A) how often noise is called a change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.comparison.judgement import ComparedMetric, Comparison, compare_pairs
from analysis.runs.groups import Group, group_runs
from analysis.runs.quantities import counted, percent
from analysis.runs.run import Run
from analysis.statistics.ratios import POWER, smallest_change
from analysis.statistics.repeats import Repeats
from analysis.table import (
    Column,
    Table,
    make_table,
    number,
    text,
    whole,
)
from bench.errors import UserError

#: Repeats on each side for which the smallest change is stated.
REPEATS = (3, 5, 10, 20)
#: Random halvings of the same runs.
HALVINGS = 200
_FEWEST_TO_HALVE = 4


@dataclass(frozen=True)
class Scatter:
    """How much repeats of some configurations of one machine differ.

    `deviation` is the relative standard deviation between repeats, pooled over the configurations,
    `low` to `high` its 95 % interval. `changes` has the smallest change for each of `REPEATS`, as a
    share: 0.03 is a factor of 1.03. `called_different` says in how many of `halvings` comparisons
    of halves one of the configurations was called faster or slower.
    """

    env: str
    label: str
    configurations: int
    repeats: int
    deviation: float
    low: float
    high: float
    changes: tuple[float, ...]
    halvings: int
    called_different: int


@dataclass(frozen=True)
class NoiseFloor:
    """The scatter of each configuration and of each machine, and what became of A/A comparisons.

    `drifted` are the configurations whose later half of repeats was called faster or slower than
    the earlier half. `single` are those of one repeat, which say nothing.
    """

    metric: ComparedMetric
    threshold: float
    configurations: tuple[Scatter, ...]
    machines: tuple[Scatter, ...]
    halvings: int
    failed: int  # of these, A/A comparisons in which some configuration was called worse
    drifted: tuple[Comparison, ...]
    single: tuple[Group, ...]


def noise_floor(
    runs: Sequence[Run],
    metric: ComparedMetric,
    *,
    threshold: float = 0.02,
    correction: str = "holm",
) -> NoiseFloor:
    """Return how much the repeats of `runs` scatter and which changes that leaves to be found.

    The smallest changes are those of a comparison of as many configurations as `runs` has, since
    the correction for their number is part of what it decides. Raises `UserError` where no
    configuration has two repeats.
    """
    groups = group_runs(runs, metric.name)
    known = [(group, group.repeats(metric.name)) for group in groups]
    scattered = [(group, found) for group, found in known if found.log_variance is not None]
    if not groups:
        raise UserError(f"none of {counted(len(runs), 'run')} has a {metric.name}")
    if not scattered:
        raise UserError(
            f"none of {counted(len(groups), 'configuration')} has two repeats with a "
            f"{metric.name}: measure five of each, with --repeats 5"
        )
    among = 1 if correction == "none" else len(groups)
    halved = [group for group, _ in scattered if len(group.runs) >= _FEWEST_TO_HALVE]
    halvings, different, failed = _halvings(halved, metric, threshold, correction)

    def scatter(
        label: str, env: str, members: Sequence[tuple[Group, Repeats]], called: int
    ) -> Scatter:
        degrees = sum(found.count - 1 for _, found in members)
        squares = sum((found.count - 1) * (found.log_variance or 0.0) for _, found in members)
        deviation = math.sqrt(squares / degrees)
        low, high = (math.sqrt(squares / stats.chi2.ppf(q, degrees)) for q in (0.975, 0.025))
        return Scatter(
            env=env,
            label=label,
            configurations=len(members),
            repeats=sum(found.count for _, found in members),
            deviation=deviation,
            low=low,
            high=high,
            changes=tuple(
                smallest_change(deviation, n, threshold=threshold, among=among) for n in REPEATS
            ),
            halvings=halvings if any(group in halved for group, _ in members) else 0,
            called_different=called,
        )

    machines = []
    for env in dict.fromkeys(group.env for group, _ in scattered):
        members = [(group, found) for group, found in scattered if group.env == env]
        names = {group.names for group, _ in members}
        called = sum(not names.isdisjoint(one) for one in different)
        machines.append(scatter("all configurations", env, members, called))
    return NoiseFloor(
        metric=metric,
        threshold=threshold,
        configurations=tuple(
            scatter(group.label, group.env, [(group, found)],
                    sum(group.names in one for one in different))
            for group, found in scattered
        ),
        machines=tuple(machines),
        halvings=halvings,
        failed=failed,
        drifted=tuple(_drifted(halved, metric, threshold, correction)),
        single=tuple(group for group, found in known if found.log_variance is None),
    )  # fmt: skip


def _halvings(
    groups: Sequence[Group], metric: ComparedMetric, threshold: float, correction: str
) -> tuple[int, list[set[tuple[str, ...]]], int]:
    """Compare random halves of each group; the names of the groups that were called different.

    Also how many comparisons there were, and in how many some configuration was called worse.
    """
    if not groups:
        return 0, [], 0
    rng = np.random.default_rng(0)
    different, failed = [], 0
    for _ in range(HALVINGS):
        pairs = [_halves([group.runs[n] for n in rng.permutation(len(group.runs))])
                 for group in groups]  # fmt: skip
        found = compare_pairs(pairs, metric, threshold=threshold, correction=correction)
        called = [one.judgement in ("better", "worse") for one in found]
        different.append(
            {group.names for group, is_so in zip(groups, called, strict=True) if is_so}
        )
        failed += any(one.judgement == "worse" for one in found)
    return HALVINGS, different, failed


def _drifted(
    groups: Sequence[Group], metric: ComparedMetric, threshold: float, correction: str
) -> list[Comparison]:
    """Compare the later half of each group's repeats with the earlier one."""
    pairs = []
    for group in groups:
        dated = [(run.record.created, run) for run in group.runs if run.record is not None]
        if len(dated) == len(group.runs):
            pairs.append(_halves([run for _, run in sorted(dated, key=lambda one: one[0])]))
    found = compare_pairs(pairs, metric, threshold=threshold, correction=correction)
    return [one for one in found if one.judgement in ("better", "worse")]


def _halves(runs: Sequence[Run]) -> tuple[Group, Group]:
    middle = len(runs) // 2
    return Group(tuple(runs[:middle])), Group(tuple(runs[middle:]))


def noise_table(floor: NoiseFloor) -> Table:
    """Return a row per configuration, and below them one for all of each machine."""

    def change(place: int) -> Column[Scatter]:
        n = REPEATS[place]
        heading = f"{n} repeats"
        return number(
            f"smallest_change_{n}_repeats", heading, lambda row: row.changes[place], percent
        )

    def different(row: Scatter) -> tuple[int | None, int | None]:
        return (row.called_different, row.halvings) if row.halvings else (None, None)

    several = len(floor.configurations) > 1
    return make_table(
        "noise_floor",
        f"Scatter of repeats by {floor.metric.name}, and the smallest change that is found",
        (*floor.configurations, *(floor.machines if several else ())),
        text("env configuration", "configuration", lambda row: (row.env, row.label),
             lambda env, label: label if label.startswith(env) else f"{env} {label}", wraps_em=14),
        whole("repeats", "repeats", lambda row: row.repeats),
        number("scatter", "scatter", lambda row: row.deviation, percent),
        number("scatter_low scatter_high", "95 % interval", lambda row: (row.low, row.high),
               lambda low, high: f"{percent(low)} to {percent(high)}"),
        *map(change, range(len(REPEATS))),
        whole("called_different halvings", "called different", different,
              lambda called, of: f"{called} of {of}"),
    )  # fmt: skip


def noise_sentences(floor: NoiseFloor) -> list[str]:
    """Return what the table means, a line each."""
    margin, count = percent(floor.threshold), len(floor.configurations) + len(floor.single)
    lines = [
        f"smallest change: found in {percent(POWER)} of comparisons of "
        f"{counted(count, 'configuration')} with so many repeats on each side, where one of them "
        f"changes and changes count from {margin} on"
    ]
    if floor.halvings:
        lines.append(
            f"halves of these runs, chosen at random: in {floor.failed} of {floor.halvings} "
            f"comparisons something was called {floor.metric.words[1]}"
        )
    else:
        lines.append("halves: four runs of one configuration would be needed")
    lines += [
        f"later against earlier half: {one.label} is {one.word} ({one.because}): the machine "
        "changed between repeats"
        for one in floor.drifted
    ]
    lines += [f"one repeat, which shows no scatter: {group.label}" for group in floor.single]
    return lines
