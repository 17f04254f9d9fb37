"""Which of several machines of one kind is not like the others, in which configurations.

A configuration is compared over all machines that have the same kind of device, whatever they are
called. A machine is odd in it where two things hold: its mean differs from the geometric mean of
the others by more than a stated share, and so far from the others' median lies one of so many
machines seldom enough by chance (`chances_of_outlying`), raised for the number of configurations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from analysis.roofs.ceilings import alike_devices
from analysis.runs.groups import Group, group_runs, settings_key
from analysis.runs.quantities import percent
from analysis.runs.run import Run
from analysis.statistics.outlying import FEWEST, chances_of_outlying
from analysis.statistics.repeats import Repeats
from bench.config import THROUGHPUT
from bench.records import Environment

_LEVEL = 0.05
#: A change of less is of no consequence, as in a comparison.
THRESHOLD = 0.02


@dataclass(frozen=True)
class Machine:
    """The runs of one configuration on one machine; `label` is what to call it."""

    label: str
    group: Group
    repeats: Repeats


@dataclass(frozen=True)
class Fleet:
    """One configuration on several machines of a kind, with those of them that are `odd`.

    `ratios` are each machine's mean over the geometric mean of those that are not odd, `chances`
    the corrected p-values, both in the order of `machines`.
    """

    machines: tuple[Machine, ...]
    ratios: tuple[float, ...]
    chances: tuple[float, ...]
    odd: tuple[int, ...]

    @property
    def label(self) -> str:
        """The configuration: model, precision and batch."""
        first = self.machines[0].group
        return f"{first.model_label} {first.precision_label} batch {first.batch_size}"

    @property
    def others(self) -> tuple[float, float]:
        """The least and the largest ratio of the machines that are not odd."""
        ratios = [ratio for place, ratio in enumerate(self.ratios) if place not in self.odd]
        return min(ratios), max(ratios)


def fleets(
    runs: Sequence[Run], metric: str = THROUGHPUT, *, threshold: float = THRESHOLD
) -> list[Fleet]:
    """Return each configuration that at least four machines of one kind ran.

    Machines are distinguished by their identity, without one by their labels.
    """
    found = [
        machines
        for machines in _by_configuration(group_runs(runs, metric), metric)
        if len(machines) >= FEWEST
    ]
    return [_judged(machines, threshold, len(found)) for machines in found]


def odd_in(side: str, runs: Sequence[Run], metric: str) -> Iterator[str]:
    """Yield a line for each machine of a side that is odd in a configuration."""
    for fleet in fleets(runs, metric):
        for place in fleet.odd:
            ratio = fleet.ratios[place]
            yield (
                f"odd in {side}: {fleet.machines[place].label} has {percent(abs(ratio - 1))} "
                f"{'less' if ratio < 1 else 'more'} {metric} than "
                f"{len(fleet.machines) - len(fleet.odd)} other machines of its kind in "
                f"{fleet.label}"
            )


def _by_configuration(groups: Iterable[Group], metric: str) -> Iterator[list[Machine]]:
    kinds = _Kinds()
    configurations: dict[object, dict[str, list[Run]]] = {}
    for run in (run for group in groups for run in group.runs):
        key = (settings_key(run, ("env",)), kinds.of(run))
        machines = configurations.setdefault(key, {})
        machines.setdefault(run.machine or run.env, []).append(run)
    for machines in configurations.values():
        grouped = {name: Group(tuple(own)) for name, own in machines.items()}
        labels = [group.env for group in grouped.values()]
        yield [
            Machine(
                group.env if labels.count(group.env) == 1 else f"{group.env} ({name})",
                group,
                group.repeats(metric),
            )
            for name, group in grouped.items()
        ]


class _Kinds:
    """Numbers the kinds of devices, as two of one name may have other memory or cores."""

    def __init__(self) -> None:
        self._known: list[Environment] = []

    def of(self, run: Run) -> int | None:
        environment = run.record.environment if run.record else None
        if environment is None:
            return None
        for number, known in enumerate(self._known):
            if alike_devices(known, environment):
                return number
        self._known.append(environment)
        return len(self._known) - 1


def _judged(machines: Sequence[Machine], threshold: float, configurations: int) -> Fleet:
    means = [machine.repeats.log_mean for machine in machines]
    found = chances_of_outlying(means, _errors([machine.repeats for machine in machines]))
    chances = tuple(min(1.0, configurations * chance) for chance in found)
    far = [place for place, chance in enumerate(chances) if chance <= _LEVEL]
    rest = [mean for place, mean in enumerate(means) if place not in far]
    centre = sum(rest) / len(rest)
    ratios = tuple(math.exp(mean - centre) for mean in means)
    odd = tuple(place for place in far if abs(math.log(ratios[place])) > math.log1p(threshold))
    return Fleet(tuple(machines), ratios, chances, odd)


def _errors(repeats: Sequence[Repeats]) -> list[float]:
    """The standard error of each machine's mean, by the scatter within all of them."""
    known = [one for one in repeats if one.log_variance is not None]
    if not known:
        return []
    degrees = sum(one.count - 1 for one in known)
    variance = sum((one.count - 1) * (one.log_variance or 0.0) for one in known) / degrees
    return [math.sqrt(variance / one.count) for one in repeats]
