"""Runs of one configuration together, batch curves, and how several devices scale against one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter

from analysis.roofs.ceilings import same_device, same_power_limit
from analysis.runs.placed import THROUGHPUT, Run
from analysis.runs.what_ran import LIMITED, precision_label, settings_of
from analysis.statistics.ratios import estimate_ratio
from analysis.statistics.repeats import Repeats, joined
from bench.records import Environment, RunRecord


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
    def env(self) -> str:
        """The machine's label."""
        return self.first.env

    @property
    def arch(self) -> str:
        """The model."""
        return self.first.arch

    @property
    def precision(self) -> str:
        """The precision that ran."""
        return self.first.precision

    @property
    def distinction(self) -> str:
        """The settings by which the runs differ from others of their machine and model."""
        return self.first.distinction

    @property
    def model_label(self) -> str:
        """The model, with what distinguishes the runs from others of their label."""
        return self.first.model_label

    @property
    def precision_label(self) -> str:
        """The precision for people, with how many runs asked for amp and got fp32."""
        return precision_label(self.first.precision, self.asked_for("precision"))

    @property
    def series(self) -> str:
        """What was measured where, but for the batch size."""
        return f"{self.env} {self.model_label} {self.precision_label}"

    @property
    def label(self) -> str:
        """What was measured where, for people."""
        return f"{self.series} batch {self.first.settings.get('batch_size')}"

    @property
    def backend(self) -> str:
        """The backend that was used, else the one asked for."""
        return self.first.settings.get("backend", "unknown")

    @property
    def emulated(self) -> bool:
        """Whether the device has no such arithmetic, and a library stands in for it."""
        resolved = self.first.record.resolved if self.first.record else None
        return resolved is not None and not resolved.native_math

    def asked_for(self, name: str) -> tuple[str | None, ...]:
        """Return a setting as each run asked for it."""
        return tuple(run.asked_for(name) for run in self.runs)

    def repeats(self, metric: str = THROUGHPUT) -> Repeats:
        """Return the repeats of `metric`; raises what `Run.repeats` does."""
        return joined(
            [run.repeats(metric) for run in self.runs], [run.machine for run in self.runs]
        )

    @property
    def batch_size(self) -> int | None:
        """Images per forward pass and device."""
        return self.first.batch_size

    @property
    def throughput_images_per_s(self) -> float:
        """The geometric mean over the repeats."""
        return self.repeats().centre


def group_runs(runs: Iterable[Run], metric: str = THROUGHPUT) -> list[Group]:
    """Group runs that have a usable `metric` by the settings that ran, in the order they come."""
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
    return [sorted(curve, key=lambda group: group.batch_size or 0) for curve in curves.values()]


#: A larger batch that loses more than 30 % has not merely passed its best size.
CLIFF = 0.7


def cliff_of(curve: Sequence[Group]) -> int | None:
    """Return the place in `curve` (smallest batch first) of the first batch past a cliff.

    None where there is none, and on a CPU, whose memory is the host's.
    """
    for place, (small, large) in enumerate(pairwise(curve), start=1):
        estimate = estimate_ratio(large.repeats(), small.repeats())
        surely = estimate.high if estimate.high is not None else estimate.ratio
        if estimate.ratio < CLIFF and surely < 1 and large.backend != "cpu":
            return place
    return None


def before_cliff(curve: Sequence[Group]) -> Sequence[Group]:
    """Return the part of a curve that no spill has touched."""
    return curve[: cliff_of(curve)]


def fastest(groups: Iterable[Group]) -> dict[tuple[str, str, str], Group]:
    """Return the group with the most images/s of each machine, model and precision."""
    found: dict[tuple[str, str, str], Group] = {}
    for group in groups:
        key = (group.first.env, group.first.arch, group.first.precision)
        known = found.get(key)
        if known is None or group.throughput_images_per_s > known.throughput_images_per_s:
            found[key] = group
    return found


def settings_key(run: Run, apart_from: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return what runs must share to be the same but for `apart_from`."""
    return tuple(sorted(item for item in run.settings.items() if item[0] not in apart_from))


def agree(ours: Group, theirs: Group, apart_from: Collection[str], *, as_asked: bool) -> bool:
    """Return whether two groups have the same settings but for `apart_from`.

    With `as_asked`, for two machines or for a run that ended before it had resolved values, a
    setting also agrees where both asked for the same of it, such as `auto`: but for the sizes of
    batch and image that were resolved, which are work and not a means. What a run that ended before
    its device was known does not have of its machine agrees with any machine.
    """
    a, b = ours.first.settings, theirs.first.settings
    ignored = {*apart_from}
    if as_asked:
        ignored |= _without_machine(ours.first) | _without_machine(theirs.first)
    return all(
        a.get(name) == b.get(name)
        or (
            as_asked
            and (name not in _WORK or "auto" in (a.get(name), b.get(name)))
            and _asked_alike(ours, theirs, name)
        )
        for name in chain(a, b)  # in their order, as most pairs differ in the first ones
        if name not in ignored
    )


def _without_machine(run: Run) -> set[str]:
    """What a run lacks that ended before its device was known; a label asked for is its own."""
    if run.record is None or run.record.environment is not None:
        return set()
    return {"device", LIMITED} | ({"env"} if run.env == "auto" else set())


def beside(group: Group, runs: Iterable[Run]) -> list[Run]:
    """Return the runs of the group's machine, device and model."""
    return [
        run
        for run in runs
        if run.arch == group.arch and run.env == group.env and run.device == group.first.device
    ]


def ran_otherwise(ours: Group, theirs: Group, besides: Collection[str]) -> str:
    """Return the settings of both groups that differ, other than `besides`: `threads 2 -> 16`."""
    a, b = ours.first.settings, theirs.first.settings
    return ", ".join(
        f"{name} {a[name]} -> {b[name]}"
        for name in sorted((a.keys() & b.keys()) - set(besides))
        if a[name] != b[name]
    )


def agreeing_pairs(
    ours: Sequence[Group], theirs: Sequence[Group], apart_from: Collection[str]
) -> list[tuple[Group, Group]]:
    """Return the pairs of two sides that have the same settings but for `apart_from`.

    Where these hold the machine, settings that were asked for alike agree too; of several such
    counterparts those count that were asked for alike throughout.
    """
    machines = "env" in apart_from or "device" in apart_from
    work = [name for name in ("arch", *sorted(_WORK)) if name not in apart_from]
    of_work: dict[tuple[str | None, ...], list[Group]] = {}
    for other in theirs:
        of_work.setdefault(tuple(map(other.first.settings.get, work)), []).append(other)
    pairs = []
    for one in ours:
        near = of_work.get(tuple(map(one.first.settings.get, work)), [])
        found = [other for other in near if agree(one, other, apart_from, as_asked=machines)]
        if machines:
            names = one.first.settings.keys() - set(apart_from) - _WORK
            alike = [other for other in found if all(_asked_alike(one, other, n) for n in names)]
            found = alike or found
        pairs += [(one, other) for other in found]
    return pairs


#: What a step works on. `auto` is not the same work on every machine.
_WORK = frozenset({"batch_size", "image_size"})


def _asked_alike(ours: Group, theirs: Group, name: str) -> bool:
    return bool((set(ours.asked_for(name)) & set(theirs.asked_for(name))) - {None})


def scaling_efficiency(many: RunRecord, one: RunRecord) -> float:
    """Return the throughput of `many` over that of its devices if each did as well as `one`.

    1 is perfect (weak scaling: the batch of each device is that of `one`). On a CPU the processes
    share the cores that `one` had to itself, so n of them reach about 1/n of it at best. Raises
    `ValueError` where the two are no pair, or one of them has no window.
    """
    if many.config.world_size == 1 or not _alike_but_for_devices(many, one):
        raise ValueError(f"{one.record_id} is not {many.record_id} on one device")
    if many.measurement is None or one.measurement is None:
        raise ValueError("scaling efficiency needs two measured windows")
    alone = one.measurement.throughput_images_per_s
    return many.measurement.throughput_images_per_s / (many.config.world_size * alone)


def on_one_device(many: RunRecord, records: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run that `many` is held against, or None where there is none.

    The same configuration on one device of the same kind, measured to its end: the same repeat
    where there is one, else the newest.
    """
    if many.config.world_size == 1 or many.environment is None:
        return None
    environment = many.environment
    pairs = [
        record
        for record in records
        if record.outcome == "ok"
        and _alike_but_for_devices(many, record)
        and record.environment is not None
        and _same_kind(record.environment, environment)
    ]
    repeat = many.config.repeat
    return max(pairs, key=lambda one: (one.config.repeat == repeat, one.created), default=None)


def _alike_but_for_devices(many: RunRecord, one: RunRecord) -> bool:
    """Whether `one` ran on one device what `many` ran on several, but for each device's share.

    A setting that was asked for alike, such as `threads=auto`, may have become another: the
    processes of one machine share its cores. The batch and the image size are what ran.
    """
    if one.config.world_size != 1:
        return False
    return agree(
        _unplaced(many), _unplaced(one), ("devices", "nodes", "env", "device"), as_asked=True
    )


def _unplaced(record: RunRecord) -> Group:
    settings, asked = settings_of(record)
    return Group((Run(name=record.record_id, settings=settings, asked=asked, metrics={}),))


def _same_kind(theirs: Environment, ours: Environment) -> bool:
    """The same device, or another of a machine whose devices are all of that name."""
    kind = attrgetter("device.backend", "device.name", "cpu_signature", "cpu_model", "machine")
    alike = same_device(theirs, ours) or (
        theirs.device.uuid is not None and kind(theirs) == kind(ours)
    )
    return alike and same_power_limit(theirs.device, ours.device)
