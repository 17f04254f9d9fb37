"""How far noise alone goes: of one machine, and of machines of one kind; devices against one.

The noise floor of a machine says how small a change `mlproject compare` finds. Repeats of one
configuration differ only by noise, so their scatter says how large a change has to be to be found,
and their halves against each other (A/A) how often noise is called a change.

Of machines of one kind, whatever they are called, one is odd in a configuration where two things
hold: its mean differs from the geometric mean of the others by more than a stated share, and so far
from the others' median lies one of so many machines seldom enough by chance
(`chances_of_outlying`), raised for the number of configurations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from analysis.columns import columns
from analysis.comparison.judgement import METRICS, ComparedMetric, compare_pairs
from analysis.roofs import alike_devices
from analysis.runs.frame import Row
from analysis.runs.groups import Group, group_runs
from analysis.runs.run import Run
from analysis.runs.settings import same_configuration
from analysis.table import Column, Table, grouped
from analysis.words import counted, percent
from bench.config import THROUGHPUT
from bench.errors import UserError
from bench.records import Environment
from bench.records.environment import same_device, same_power_limit
from bench.statistics.ratios import POWER, pooled_scatter, smallest_change
from bench.statistics.series import FEWEST_MACHINES, chances_of_outlying

# The noise floor

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


# Machines of one kind

_LEVEL = 0.05
_THRESHOLD = 0.02  # a change of less is of no consequence, as in a comparison


@dataclass(frozen=True)
class OfKind:
    """A machine in one configuration: its mean over the geometric mean of the `others`.

    These are all machines of its kind that are not odd. `p_value` is the corrected chance of lying
    so far off.
    """

    machine: str
    group: Group
    ratio: float
    p_value: float
    odd: bool
    others: int

    def compared(self, less: str, more: str) -> str:
        """Return `4.1 % slower than 7 other machines of its kind in ...`."""
        one = self.group
        return (
            f"{percent(abs(self.ratio - 1))} {less if self.ratio < 1 else more} than {self.others} "
            f"other machines of its kind in {one.model_label} {one.precision_label} "
            f"batch {one.batch_size}"
        )


def same_kinds(runs: Sequence[Run], metric: str = THROUGHPUT) -> list[OfKind]:
    """Return each machine in each configuration that at least four of its kind ran.

    Machines are distinguished by their identity, without one by their labels.
    """
    known: list[Environment] = []
    configurations: dict[object, dict[str, list[Run]]] = {}
    for group in group_runs(runs, metric):
        for run in group.runs:
            key = (run.identity.key(("env",)), _kind(run, known))
            machines = configurations.setdefault(key, {})
            machines.setdefault(run.machine or run.env, []).append(run)
    found = [own for own in configurations.values() if len(own) >= FEWEST_MACHINES]
    return [one for machines in found for one in _judged(machines, metric, len(found))]


def odd_machines(runs: Sequence[Run], metric: str = THROUGHPUT) -> dict[str, list[OfKind]]:
    """Return by its label the configurations in which a machine is odd, the worst first."""
    odd = [one for one in same_kinds(runs, metric) if one.odd]
    found = grouped(odd, lambda one: one.machine)
    return {label: sorted(own, key=lambda one: -abs(one.ratio - 1)) for label, own in found.items()}


def _kind(run: Run, known: list[Environment]) -> int | None:
    """A number of the kind of device: two of one name may have other memory or cores."""
    environment = run.record.environment if run.record else None
    if environment is None:
        return None
    if not any(alike_devices(one, environment) for one in known):
        known.append(environment)
    return next(n for n, one in enumerate(known) if alike_devices(one, environment))


def _judged(
    machines: Mapping[str, Sequence[Run]], metric: str, configurations: int
) -> list[OfKind]:
    """The machines by their labels, with the identity where several share one."""
    groups = [Group(tuple(runs)) for runs in machines.values()]
    labels = [group.env for group in groups]
    repeats = [group.repeats(metric) for group in groups]
    scatter = pooled_scatter(repeats)
    errors = [scatter.deviation / math.sqrt(one.count) for one in repeats] if scatter else []
    means = [one.log_mean for one in repeats]
    p_values = [min(1.0, configurations * p) for p in chances_of_outlying(means, errors)]
    rated = list(zip(means, p_values, strict=True))
    centre = fmean(mean for mean, p_value in rated if p_value > _LEVEL)
    odd = [p <= _LEVEL and abs(mean - centre) > math.log1p(_THRESHOLD) for mean, p in rated]
    names = (
        label if labels.count(label) == 1 else f"{label} ({name})"
        for label, name in zip(labels, machines, strict=True)
    )
    ratios = (math.exp(mean - centre) for mean in means)
    return [
        OfKind(*one, odd.count(False))
        for one in zip(names, groups, ratios, p_values, odd, strict=True)
    ]


_OF_DEVICES = ("devices", "nodes", "env", "device")


def on_one_device(many: Run, runs: Sequence[Run]) -> tuple[Run, float] | None:
    """Return the run that `many` is held against with its scaling efficiency; None without one.

    The same configuration on one device of the same kind, measured to its end: the same repeat
    where there is one, else the newest. A setting that was asked for alike, such as `threads=auto`,
    may have become another. The efficiency is the samples/s of `many` over those of its devices if
    each did as well: 1 is perfect (weak scaling: the batch of each device is that of the one). On a
    CPU the processes share the cores that the one had to itself, so n of them reach about 1/n of it
    at best.
    """
    record, rate = many.record, many.samples_per_s
    if record is None or record.environment is None or record.config.world_size == 1 or not rate:
        return None
    candidates = [
        (run.config.repeat == record.config.repeat, run.record.created, run, run.samples_per_s)
        for run in runs
        if run.record is not None
        and run.record.environment is not None
        and run.config.world_size == 1
        and run.samples_per_s is not None
        and same_configuration(many.identity, run.identity, _OF_DEVICES, by="asked")
        and _same_kind(run.record.environment, record.environment)
    ]
    if not candidates:
        return None
    *_, single, alone = max(candidates, key=itemgetter(0, 1))
    return single, rate / (record.config.world_size * alone)


def _same_kind(theirs: Environment, ours: Environment) -> bool:
    """The same device, or another of a machine whose devices are all of that name."""
    kind = attrgetter("device.backend", "device.name", "cpu_signature", "cpu_model", "machine")
    alike = same_device(theirs, ours) or (
        theirs.device.uuid is not None and kind(theirs) == kind(ours)
    )
    return alike and same_power_limit(theirs.device.power_limit_w, ours.device.power_limit_w)
