"""Runs of one configuration together, and batch curves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from analysis.runs.quantities import whole_number
from analysis.runs.run import TOKENS_PER_S, Run
from analysis.runs.what_ran import precision_label
from analysis.statistics.ratios import estimate_ratio
from analysis.statistics.repeats import Repeats, joined
from bench.config import THROUGHPUT, Sample, common_sample
from bench.records.verdict.step_settings import LIMITED


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
    def seq_len(self) -> int | None:
        """Tokens of a sequence, None of a model that takes none."""
        return whole_number(self.first.settings.get("seq_len"))

    @property
    def model_and_tokens(self) -> str:
        """The model, with the tokens of a sequence: sequences/s of two lengths do not compare."""
        return self.arch if self.seq_len is None else f"{self.arch}, {self.seq_len} tokens"

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
        """Samples per forward pass and device."""
        return self.first.batch_size

    @property
    def sample(self) -> Sample:
        """What a batch has `batch_size` of."""
        return self.first.sample

    @property
    def rate_unit(self) -> str:
        """The unit of its samples per second, such as images/s."""
        return self.first.rate_unit

    @property
    def samples_per_s(self) -> float:
        """The geometric mean over the repeats."""
        return self.repeats().centre

    @property
    def tokens_per_s(self) -> float | None:
        """Likewise; None where samples have no tokens."""
        known = all(run.tokens_per_s is not None for run in self.runs)
        return self.repeats(TOKENS_PER_S).centre if known else None


def sample_of(runs: Iterable[Run]) -> Sample:
    """Return what all `runs` trained on; of several kinds they are just samples.

    What a run without a result would have trained on may be unknown: such runs count only alone.
    """
    found = list(runs)
    return common_sample(r.sample for r in [r for r in found if r.outcome == "ok"] or found)


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
    """Return the group with the most samples/s of each machine, model and precision.

    The model is named with the tokens of its sequences.
    """
    found: dict[tuple[str, str, str], Group] = {}
    for group in groups:
        key = (group.env, group.model_and_tokens, group.precision)
        known = found.get(key)
        if known is None or group.samples_per_s > known.samples_per_s:
            found[key] = group
    return found


def settings_key(run: Run, apart_from: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return what runs must share to be the same but for `apart_from`."""
    settings = run.sorted_settings
    return tuple(item for item in settings if item[0] not in apart_from) if apart_from else settings


def agree(ours: Group, theirs: Group, apart_from: Collection[str], *, as_asked: bool) -> bool:
    """Return whether two groups have the same settings but for `apart_from`.

    With `as_asked`, for two machines or for a run that ended before it had resolved values, a
    setting also agrees where both asked for the same of it, such as `auto`: but for the sizes of
    batch, image and sequence that were resolved, which are work and not a means. What a run that
    ended before its device was known does not have of its machine agrees with any machine.
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
_WORK = frozenset({"batch_size", "image_size", "seq_len"})


def _asked_alike(ours: Group, theirs: Group, name: str) -> bool:
    return bool((set(ours.asked_for(name)) & set(theirs.asked_for(name))) - {None})
