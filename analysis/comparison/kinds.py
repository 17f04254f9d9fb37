"""Machines of one kind: which of them is unlike the others; several devices against one.

A configuration is compared over all machines that have the same kind of device, whatever they are
called. A machine is odd in it where two things hold: its mean differs from the geometric mean of
the others by more than a stated share, and so far from the others' median lies one of so many
machines seldom enough by chance (`chances_of_outlying`), raised for the number of configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from statistics import fmean

from analysis.roofs.ceilings import alike_devices
from analysis.runs.groups import Group, group_runs
from analysis.runs.run import Run
from analysis.runs.settings import same_configuration
from analysis.statistics.repeats import pooled_scatter
from analysis.statistics.series import FEWEST_MACHINES, chances_of_outlying
from analysis.table import grouped
from analysis.words import percent
from bench.config import THROUGHPUT
from bench.records import Environment
from bench.records.environment import same_device, same_power_limit

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
