"""The noise floor of a machine: how small a change `mlproject compare` finds, from its own repeats.

Repeats of one configuration differ only by noise, so their scatter says how large a change has to
be to be found, and their halves against each other (A/A) how often noise is called a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from analysis.columns import columns
from analysis.comparison.judgement import METRICS, ComparedMetric, compare_pairs
from analysis.runs.frame import Row
from analysis.runs.groups import Group, group_runs
from analysis.runs.run import Run
from analysis.statistics.ratios import POWER, smallest_change
from analysis.statistics.repeats import pooled_scatter
from analysis.table import Column, Table, grouped
from analysis.words import counted, percent
from bench.errors import UserError

#: Repeats on each side for which the smallest change is stated.
REPEATS = (3, 5, 10, 20)
#: Random halvings of the same runs.
HALVINGS = 200
_FEWEST_TO_HALVE = 4


def noise_floor(
    runs: Sequence[Run], metric: ComparedMetric, *, threshold: float = 0.02
) -> dict[str, Any]:
    """Return how much the repeats of `runs` scatter and which changes that leaves to be found.

    A row of `configurations` has `scatter`, the relative standard deviation between repeats, with
    its 95 % interval; for each of `REPEATS` the smallest change as a share, 0.03 being a factor of
    1.03; and in how many of `halvings` comparisons of halves the configuration was called faster or
    slower. A row of `machines` has the scatter pooled over the machine's configurations. In
    `failed` of the halvings some configuration was called worse. `single` are the configurations of
    one repeat, which say nothing.

    The smallest changes are those of a comparison of as many configurations as `runs` has, since
    the correction for their number is part of what it decides. Raises `UserError` where no
    configuration has two repeats.
    """
    groups = group_runs(runs, metric.name)
    scattered = [g for g in groups if g.repeats(metric.name).log_variance is not None]
    if not scattered:
        raise UserError(
            f"none of {counted(len(groups), 'configuration')} has two repeats with a "
            f"{metric.name}: measure five of each, with --repeats 5"
        )

    def row(label: str, members: Sequence[Group]) -> Row:
        known = {"env": members[0].env, "configuration": label}
        return known | _scatter(members, metric, threshold, len(groups))

    halved = [group for group in scattered if len(group.runs) >= _FEWEST_TO_HALVE]
    called, failed = _halve(halved, metric, threshold)
    configurations = []
    for group in scattered:
        halves = {"called_different": called[group.names], "halvings": HALVINGS}
        configurations.append(row(group.label, [group]) | (halves if group in halved else {}))
    machines = grouped(scattered, lambda group: group.env).values()
    return {
        "metric": metric.name,
        "threshold": threshold,
        "configurations": configurations,
        "machines": [row("all configurations", members) for members in machines],
        "halvings": HALVINGS if halved else 0,
        "failed": failed,
        "single": [group.label for group in groups if group not in scattered],
        "power": POWER,
        "change_at_repeats": list(REPEATS),
    }


def _halve(
    groups: Sequence[Group], metric: ComparedMetric, threshold: float
) -> tuple[Counter[tuple[str, ...]], int]:
    """How often each group's halves were called different, and how often any was called worse."""
    rng, called, failed = np.random.default_rng(0), Counter[tuple[str, ...]](), 0
    for _ in range(HALVINGS if groups else 0):
        pairs = []
        for group in groups:
            middle, order = len(group.runs) // 2, rng.permutation(len(group.runs))
            shuffled = tuple(group.runs[index] for index in order)
            pairs.append((Group(shuffled[:middle]), Group(shuffled[middle:])))
        judged = [c.judgement for c in compare_pairs(pairs, metric, threshold=threshold)]
        called.update(
            group.names
            for group, judgement in zip(groups, judged, strict=True)
            if judgement in ("better", "worse")
        )
        failed += "worse" in judged
    return called, failed


def _scatter(groups: Sequence[Group], metric: ComparedMetric, threshold: float, among: int) -> Row:
    """The pooled deviation with its interval by chi-squared, and the changes that it hides."""
    repeats = [group.repeats(metric.name) for group in groups]
    scatter = pooled_scatter(repeats)
    assert scatter  # the caller's have variances  # noqa: S101
    deviation, degrees = scatter
    low, high = np.sqrt(degrees / stats.chi2.ppf((0.975, 0.025), degrees)).tolist()
    changes = {n: smallest_change(deviation, n, threshold=threshold, among=among) for n in REPEATS}
    return {
        "repeats": sum(one.count for one in repeats),
        "scatter": deviation,
        "scatter_low": deviation * low,
        "scatter_high": deviation * high,
        **{_change_at(number): change for number, change in changes.items()},
    }


def _change_at(repeats: int) -> str:
    return f"smallest_change_{repeats}_repeats"


def noise_table(floor: Mapping[str, Any]) -> Table:
    """Return a row per configuration, and below them one for all of each machine."""
    several = len(floor["configurations"]) > 1
    changes = (Column(f"{n} repeats", (_change_at(n),), percent, True) for n in REPEATS)
    return Table(
        "noise_floor",
        f"Scatter of repeats by {floor['metric']}, and the smallest change that is found",
        [*floor["configurations"], *(floor["machines"] if several else ())],
        (
            *columns("configuration_of repeats scatter scatter_interval"),
            *changes,
            *columns("called_different"),
        ),
    )


def noise_sentences(floor: Mapping[str, Any]) -> list[str]:
    """Return what the table means, a line each."""
    count = len(floor["configurations"]) + len(floor["single"])
    return [
        f"smallest change: found in {percent(POWER)} of comparisons of "
        f"{counted(count, 'configuration')} with so many repeats on each side, where one of them "
        f"changes and changes count from {percent(floor['threshold'])} on",
        f"halves of these runs, chosen at random: in {floor['failed']} of {floor['halvings']} "
        f"comparisons something was called {METRICS[floor['metric']].words[1]}"
        if floor["halvings"]
        else "halves: four runs of one configuration would be needed",
        *(f"one repeat, which shows no scatter: {label}" for label in floor["single"]),
    ]
