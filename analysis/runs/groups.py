"""Runs of one configuration together, and configurations that differ in batch size alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.runs.placed import THROUGHPUT, Run
from analysis.statistics.repeats import Repeats, joined


@dataclass(frozen=True)
class Group:
    """Runs of one configuration on one machine: its repeats. At least one, all ended well."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """A run that stands for the settings of all."""
        return self.runs[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The runs' ids."""
        return tuple(run.name for run in self.runs)

    @property
    def label(self) -> str:
        """What was measured where, for people."""
        return self.first.label

    def repeats(self, metric: str = THROUGHPUT) -> Repeats:
        """Return the repeats of `metric`; raises what `Run.repeats` does."""
        return joined([run.repeats(metric) for run in self.runs])

    @property
    def batch_size(self) -> int | None:
        """Images per forward pass and device."""
        return self.first.batch_size

    @property
    def throughput_images_per_s(self) -> float:
        """The geometric mean over the repeats."""
        return self.repeats().centre


def group_runs(runs: Iterable[Run], metric: str = THROUGHPUT) -> list[Group]:
    """Group runs that have a usable `metric` by all their settings, in the order they come."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        if run.usable(metric) is not None:
            groups.setdefault(settings_key(run), []).append(run)
    return [Group(tuple(members)) for members in groups.values()]


def batch_curves(runs: Iterable[Run]) -> list[list[Group]]:
    """Return the groups that differ in batch size alone, smallest batch first.

    A curve of a single batch size is one too.
    """
    curves: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for group in group_runs(runs):
        if group.batch_size is not None:
            key = settings_key(group.first, ("batch_size",))
            curves.setdefault(key, []).append(group)
    return [sorted(curve, key=_batch) for curve in curves.values()]


def settings_key(run: Run, apart_from: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return what runs must share to be the same but for `apart_from`."""
    return tuple(sorted(item for item in run.settings.items() if item[0] not in apart_from))


def _batch(group: Group) -> int:
    return group.batch_size or 0
