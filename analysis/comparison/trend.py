"""One configuration over its history: when its speed changed, by how much, and what else did then.

Runs in a row that share campaign and software are one point, their geometric mean: repeats of one
night resemble each other more than nights do. Runs without a campaign are a point each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise

from analysis.comparison.judgement import ComparedMetric
from analysis.runs.groups import Group, group_runs
from analysis.runs.quantities import counted
from analysis.runs.run import Run
from analysis.runs.what_ran import distinguished
from analysis.statistics.change_points import FEWEST, Change, find_changes
from bench.config import RunConfig
from bench.errors import UserError
from bench.records.verdict.step_settings import CODE

LEVEL = 0.05
#: What stands in place of a campaign that was not given: to `run`, and to `import`.
_NO_CAMPAIGN = (None, RunConfig.model_fields["campaign"].default, "imported")


@dataclass(frozen=True)
class Point:
    """Runs of one configuration that belong together in time; `value` is their geometric mean."""

    started: datetime
    runs: tuple[Run, ...]
    value: float

    @property
    def campaign(self) -> str | None:
        """The campaign of its runs."""
        return self.runs[0].campaign

    @property
    def facts(self) -> dict[str, str]:
        """The software and the machine, as far as its runs know."""
        machine = self.runs[0].machine
        return {**self.runs[0].software, **({"machine": machine} if machine else {})}


@dataclass(frozen=True)
class Turn:
    """A change of the level: where it is, where it may be, and what else changed there."""

    change: Change
    before: Point  # the last point that surely has the old level
    after: Point
    earliest: Point  # the first point that may already have the new level
    latest: Point  # the last point that may be the first of the new level

    @property
    def differs(self) -> tuple[str, ...]:
        """What the records name otherwise before and after it may be: `torch 2.11.0 -> 2.15.0`."""
        ours, theirs = self.before.facts, self.latest.facts
        return tuple(
            f"{name} {ours[name]} -> {theirs[name]}"
            for name in sorted(ours.keys() & theirs.keys())
            if ours[name] != theirs[name]
        )


@dataclass(frozen=True)
class History:
    """One configuration, its points in order of time, and the changes of its level."""

    group: Group
    metric: ComparedMetric
    points: tuple[Point, ...]
    turns: tuple[Turn, ...]

    @property
    def label(self) -> str:
        """Machine, configuration and batch."""
        return self.group.label

    @property
    def judged(self) -> bool:
        """Whether there were points enough to look for changes."""
        return len(self.points) >= FEWEST

    @property
    def levels(self) -> tuple[tuple[int, int, float], ...]:
        """First point, last point (exclusive) and geometric mean of each level."""
        edges = [0, *(turn.change.place for turn in self.turns), len(self.points)]
        return tuple((start, end, _mean(self.points[start:end])) for start, end in pairwise(edges))

    def worse(self, threshold: float) -> bool:
        """Return whether the newest level is worse than the one before by more than a share."""
        if not self.turns:
            return False
        ratio = self.turns[-1].change.estimate.ratio
        loss = 1 / ratio if self.metric.better == "higher" else ratio
        return loss > 1 + threshold


def histories(runs: Sequence[Run], metric: ComparedMetric) -> list[History]:
    """Return each configuration of `runs` over time.

    Versions of a user's own model are one history, and the version is a fact of each point.
    The chance of finding a change where there is none is 5 % for all of them together. Raises
    `UserError` where no configuration has five points.
    """
    timed = [_versions_together(run) for run in runs if run.started is not None]
    groups = group_runs(distinguished(timed), metric.name)
    series = [(group, list(_points(group, metric.name))) for group in groups]
    judged = sum(len(points) >= FEWEST for _, points in series)
    if not judged:
        raise UserError(_too_few(runs, series))
    return [_history(group, points, metric, LEVEL / judged) for group, points in series]


def _versions_together(run: Run) -> Run:
    """The run with the version of its model's source beside its software, not as a setting."""
    settings = dict(run.settings)
    if (code := settings.pop(CODE, None)) is None:
        return run
    return replace(run, settings=settings, software={**run.software, "model's code": code})


def _points(group: Group, metric: str) -> Iterator[Point]:
    runs = sorted(group.runs, key=_time)

    def together(run: Run) -> tuple[object, ...]:
        alone = run.campaign in _NO_CAMPAIGN
        return run.campaign, run.name if alone else "", run.machine, tuple(run.software.items())

    for _, found in groupby(runs, key=together):
        own = tuple(found)
        value = Group(own).repeats(metric).centre
        yield Point(_time(own[0]), own, value)


def _time(run: Run) -> datetime:
    if run.started is None:
        raise ValueError(f"run {run.name} has no time")
    return run.started


def _history(
    group: Group, points: Sequence[Point], metric: ComparedMetric, alpha: float
) -> History:
    turns = tuple(
        Turn(
            change,
            before=points[change.first - 1],
            after=points[change.place],
            earliest=points[change.first],
            latest=points[change.last],
        )
        for change in find_changes([point.value for point in points], alpha)
    )
    return History(group, metric, tuple(points), turns)


def _mean(points: Sequence[Point]) -> float:
    return math.exp(sum(math.log(point.value) for point in points) / len(points))


def _too_few(runs: Sequence[Run], series: Sequence[tuple[Group, Sequence[Point]]]) -> str:
    timeless = sum(run.started is None for run in runs)
    if not series:
        why = (
            f"{timeless} of {len(runs)} runs have no time" if timeless else "no run has the metric"
        )
        return f"no history: {why}"
    group, points = max(series, key=lambda one: len(one[1]))
    return (
        f"no history: {group.label} has {counted(len(points), 'point')} in time, and {FEWEST} are "
        "needed (runs of one campaign are one point); mlproject compare is for two sets of runs"
    )
