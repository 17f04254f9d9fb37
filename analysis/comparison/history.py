"""One configuration over its history: when its speed changed, by how much, and what else did then.

Runs in a row that share campaign and software are one point, their geometric mean: repeats of one
night resemble each other more than nights do. Runs without a campaign are a point each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise
from statistics import geometric_mean

from analysis.comparison.judgement import ComparedMetric
from analysis.presentation.words import counted
from analysis.runs.groups import Group, group_runs
from analysis.runs.run import Run, distinguished
from bench.config import RunConfig
from bench.errors import UserError
from bench.records.step_settings import CODE
from bench.statistics.series import FEWEST_POINTS, LevelChange, find_changes

_LEVEL = 0.05
#: What stands in place of a campaign that was not given: to `run`, and to `import`.
_NO_CAMPAIGN = (None, RunConfig.model_fields["campaign"].default, "imported")


@dataclass(frozen=True)
class Moment:
    """Runs of one configuration that belong together in time; `value` is their geometric mean.

    `facts` are the software and the machine, as far as they know.
    """

    started: datetime
    runs: tuple[Run, ...]
    value: float
    facts: Mapping[str, str]


@dataclass(frozen=True)
class History:
    """One configuration, its points in order of time, and the changes of its level.

    It is `judged` if there were points enough to look for changes.
    """

    label: str
    metric: ComparedMetric
    points: tuple[Moment, ...]
    judged: bool
    changes: tuple[LevelChange, ...]

    @property
    def levels(self) -> tuple[tuple[int, int, float], ...]:
        """First point, last point (exclusive) and geometric mean of each level."""
        edges = [0, *(change.index for change in self.changes), len(self.points)]
        return tuple(
            (start, end, geometric_mean(point.value for point in self.points[start:end]))
            for start, end in pairwise(edges)
        )

    def differs(self, change: LevelChange) -> tuple[str, ...]:
        """Return what records name otherwise before and after the level may have changed.

        Such as `torch 2.11.0 -> 2.15.0`.
        """
        ours, theirs = self.points[change.first - 1].facts, self.points[change.last].facts
        return tuple(
            f"{name} {ours[name]} -> {theirs[name]}"
            for name in sorted(ours.keys() & theirs.keys())
            if ours[name] != theirs[name]
        )

    @property
    def newest(self) -> tuple[Run, ...]:
        """The runs of the newest level."""
        first = self.levels[-1][0]
        return tuple(run for point in self.points[first:] for run in point.runs)

    @property
    def accepted(self) -> str | None:
        """Who accepted the newest level, and why."""
        return next((run.accepted for run in reversed(self.newest) if run.accepted), None)

    def worse(self, threshold: float) -> bool:
        """Return whether the newest level is worse than the one before by more than a share."""
        if not self.changes:
            return False
        ratio = self.changes[-1].estimate.ratio
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
    series = [(group.label, tuple(_points(group, metric.name))) for group in groups]
    judged = sum(len(points) >= FEWEST_POINTS for _, points in series)
    if not judged:
        most = max((len(points) for _, points in series), default=0)
        raise UserError(
            f"no history: of {counted(len(runs), 'run')} {len(timed)} have a time, and a "
            f"configuration has at most {counted(most, 'point')} in time, of which "
            f"{FEWEST_POINTS} are needed (runs of one campaign are one point); mlproject compare "
            "is for two sets of runs"
        )
    return [
        History(
            label,
            metric,
            points,
            len(points) >= FEWEST_POINTS,
            tuple(find_changes([one.value for one in points], _LEVEL / judged)),
        )
        for label, points in series
    ]


def _versions_together(run: Run) -> Run:
    """The run with the version of its model's source beside its software, not as a setting."""
    settings = dict(run.settings)
    if (code := settings.pop(CODE, None)) is None:
        return run
    return replace(run, settings=settings, software={**run.software, "model's code": code})


def _points(group: Group, metric: str) -> Iterator[Moment]:
    timed = sorted(
        ((run.started, run) for run in group.runs if run.started), key=lambda one: one[0]
    )

    def together(timed: tuple[datetime, Run]) -> tuple[object, ...]:
        run = timed[1]
        alone = run.campaign in _NO_CAMPAIGN
        return run.campaign, run.name if alone else "", run.machine, tuple(run.software.items())

    for _, found in groupby(timed, key=together):
        times, runs = zip(*found, strict=True)
        facts = dict(runs[0].software)
        if runs[0].machine:
            facts["machine"] = runs[0].machine
        yield Moment(times[0], runs, Group(runs).repeats(metric).centre, facts)
