"""Runs of one configuration together, and batch curves."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from analysis.account import Difference, StepAccount
from analysis.presentation.columns import Row
from analysis.presentation.table import RunList, RunNumbers, grouped
from analysis.presentation.words import three_digits
from analysis.runs.points import RooflinePoint
from analysis.runs.run import MODELLED, TOKENS_PER_S, Run, recorded
from analysis.runs.settings import Identified, Identity, same_configuration
from bench.config import THROUGHPUT, Sample, common_sample, rate_column
from bench.errors import Unknown
from bench.statistics.ratios import RatioEstimate, Repeats, estimate_ratio, joined

if TYPE_CHECKING:
    import pandas as pd

#: A larger batch that loses more than 30 % has not merely passed its best size.
CLIFF = 0.7


@dataclass(frozen=True)
class Group(Identified):
    """Runs of one configuration on one machine: its repeats, at least one.

    All ended well, or none did: such a group has no rate.
    """

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that stands for the settings of all."""
        return self.runs[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The runs' ids."""
        return tuple(run.name for run in self.runs)

    @property
    def distinction(self) -> str:
        """The settings by which the runs differ from others of their machine and model."""
        return self.first.distinction

    @cached_property
    def identity(self) -> Identity:
        """The settings by which it is told from other configurations."""
        return replace(self.first.identity, asked=tuple(run.asked for run in self.runs))

    @cached_property
    def _repeats(self) -> dict[str, Repeats]:
        return {}

    def repeats(self, metric: str = THROUGHPUT) -> Repeats:
        """Return the repeats of `metric`, made once; raises what `Run.repeats` does."""
        if metric not in self._repeats:
            parts = [run.repeats(metric) for run in self.runs]
            self._repeats[metric] = joined(parts, [run.machine for run in self.runs])
        return self._repeats[metric]

    @property
    def sample(self) -> Sample:
        """What a batch has `batch_size` of."""
        return self.first.sample

    @cached_property
    def samples_per_s(self) -> float:
        """The geometric mean over the repeats."""
        return self.repeats().centre

    @property
    def step_s(self) -> float:
        """The time of a batch, by the rate of all; 0 where the batch size is no number."""
        return (self.batch_size or 0) / self.samples_per_s

    @property
    def rate(self) -> str:
        """Its samples per second for people."""
        return f"{three_digits(self.samples_per_s)} {self.first.rate_unit}"

    def mean(self, metric: str) -> float | None:
        """Return the geometric mean over the repeats; None where one of them has no `metric`."""
        missing = any(run.usable(metric) is None for run in self.runs)
        return None if missing else self.repeats(metric).centre

    @property
    def points(self) -> list[RooflinePoint]:
        """The places of its runs under their roof."""
        return [run.point for run in self.runs if run.point]

    @property
    def of_the_roof(self) -> tuple[float, float] | None:
        """The mean over the repeats of both ends of the share; None without a place."""
        if not self.points:
            return None
        low = statistics.fmean(one.fraction_of_roof_min for one in self.points)
        return low, statistics.fmean(one.fraction_of_roof_max for one in self.points)


def names_of(groups: Iterable[Group]) -> tuple[str, ...]:
    """Return the ids of all runs of `groups`, each once."""
    return tuple(dict.fromkeys(name for group in groups for name in group.names))


def sample_of(runs: Iterable[Run]) -> Sample:
    """Return what all `runs` trained on; of several kinds they are just samples.

    What a run without a result would have trained on may be unknown: such runs count only alone.
    """
    found = list(runs)
    return common_sample(r.sample for r in [r for r in found if r.outcome == "ok"] or found)


class BatchCurve(tuple[Group, ...]):
    """The groups that differ in batch size alone, smallest batch first; at least one."""

    @cached_property
    def cliff(self) -> int | None:
        """The index of the first batch past a cliff, from where memory spills.

        None where there is none, and on a CPU, whose memory is the host's.
        """
        for index, (small, large) in enumerate(pairwise(self), start=1):
            estimate = estimate_ratio(large.repeats(), small.repeats())
            surely = estimate.interval.high if estimate.interval else estimate.ratio
            if estimate.ratio < CLIFF and surely < 1 and large.backend != "cpu":
                return index
        return None

    @property
    def before_cliff(self) -> tuple[Group, ...]:
        """The part that no spill has touched."""
        return self[: self.cliff]


class Runs(tuple[Run, ...]):
    """Placed runs with what is made of them once: what findings, tables and figures take."""

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Runs:
        """Return `runs` themselves where their configurations are known already."""
        return runs if isinstance(runs, Runs) else cls(runs)

    @cached_property
    def numbers(self) -> RunNumbers:
        """The number of each run in a report."""
        return RunNumbers({run.name: run.number for run in self})

    @cached_property
    def groups(self) -> list[Group]:
        """Those that have a throughput, in the order of the runs."""
        return _grouped(self, THROUGHPUT)

    @cached_property
    def curves(self) -> list[BatchCurve]:
        """The batch curves, in the order of the runs; one of a single batch size is one too."""
        sized = (group for group in self.groups if group.batch_size is not None)
        alike = grouped(sized, lambda group: group.identity.key(("batch_size",))).values()
        return [BatchCurve(sorted(those, key=lambda one: one.batch_size or 0)) for those in alike]

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """A row per configuration: what ran, the statistics of its repeats, its place, its runs."""
        import pandas as pd

        rate = rate_column(sample_of(self))
        rows = [configuration_row(group, rate) for group in configurations(self)]
        table: pd.DataFrame = pd.DataFrame([row | {"runs": row["runs"].names} for row in rows])
        return table

    @cached_property
    def spilled(self) -> frozenset[tuple[str, ...]]:
        """The names of the groups past the cliff of their curve: they show a spill of memory."""
        past = (group for curve in self.curves for group in curve[len(curve.before_cliff) :])
        return frozenset(group.names for group in past)


def group_runs(runs: Iterable[Run], metric: str = THROUGHPUT) -> list[Group]:
    """Group runs that have a usable `metric` by the settings that ran, in the order they come."""
    return Runs.of(runs).groups if metric == THROUGHPUT else _grouped(runs, metric)


def _grouped(runs: Iterable[Run], metric: str) -> list[Group]:
    usable = (run for run in runs if run.usable(metric) is not None)
    alike = grouped(usable, lambda run: run.identity.key())
    return [Group(tuple(members)) for members in alike.values()]


def fastest(groups: Iterable[Group]) -> dict[tuple[str, str, str], Group]:
    """Return the group with the most samples/s of each machine, model and precision.

    The model is named with the tokens of its sequences.
    """
    found: dict[tuple[str, str, str], Group] = {}
    for group in groups:
        key = (group.env, group.model_and_tokens, group.precision)
        if group.samples_per_s > found.setdefault(key, group).samples_per_s:
            found[key] = group
    return found


def newest_accounts(runs: Sequence[Run]) -> list[tuple[Run, StepAccount]]:
    """Return the account of each configuration's last run that has one, in the runs' order.

    Of its runs with a disturbed account the last is taken only where all are.
    """
    found: dict[str, tuple[Run, StepAccount]] = {}
    for run in reversed(runs):
        account, (_, known) = run.account, found.get(run.label, (None, None))
        if isinstance(account, Unknown) or (known and known.is_disturbed <= account.is_disturbed):
            continue
        found[run.label] = run, account
    return list(found.values())[::-1]


def _usual_account(runs: Sequence[Run]) -> list[StepAccount]:
    """The account whose step is nearest to the mean one, undisturbed if possible; or none."""
    known = [account for run in runs if isinstance(account := run.account, StepAccount)]
    if not known:
        return []
    mean_s = statistics.geometric_mean(account.step_time_s for account in known)
    return [min(known, key=lambda one: (one.is_disturbed, abs(one.step_time_s - mean_s)))]


def difference_between(a: Sequence[Run], b: Sequence[Run]) -> Difference | Unknown | None:
    """Return how the steps of two configurations differ, by the account nearest to each mean step.

    Unknown where one is disturbed; None where no step of one was looked into.
    """
    accounts = [account for side in (a, b) for account in _usual_account(side)]
    if len(accounts) < 2:
        return None
    for side, account in zip("AB", accounts, strict=True):
        if account.is_disturbed:
            return Unknown(f"which parts differ is not sure: the account of {side} is disturbed")
    return Difference(accounts[0], accounts[1])


# Rows of configurations, by the names of columns


def ratio_row(estimate: RatioEstimate | None) -> Row:
    """Return a ratio with the ends of its interval."""
    if estimate is None:
        return {}
    low, high = estimate.interval or (None, None)
    return {"ratio": estimate.ratio, "ratio_low": low, "ratio_high": high}


def configurations(runs: Runs) -> list[Group]:
    """Return every configuration that was asked for a throughput, those without one last."""
    measured = runs.groups
    failed = [
        run
        for run in runs
        if run.outcome != "ok"
        and not any(same_configuration(run.identity, one.identity, by="asked") for one in measured)
    ]
    alike = grouped(failed, lambda run: run.identity.key()).values()
    return [*measured, *(Group(tuple(members)) for members in alike)]


def group_row(group: Group, rate: str) -> Row:
    """Return the settings of repeats with the mean of their rate, its SD and their number.

    `rate` is the rate's key, which all rows of a table share.
    """
    repeats = group.repeats()
    deviation = repeats.relative_deviation
    return {
        **group.identity_row,
        "repeats": repeats.count,
        "runs": RunList(group.names),
        rate: repeats.centre,
        f"{rate}_sd": None if deviation is None else deviation * repeats.centre,
    }


def configuration_row(group: Group, rate: str) -> Row:
    """Return a configuration's rate over its repeats, and its place under the roof.

    Its intensity is counted where a profile counted one of the runs, else the modelled interval.
    """
    first, points = group.first, group.points
    found = {**group.identity_row, "repeats": 0, "runs": RunList(group.names)}
    if first.outcome == "ok":
        low, high = group.repeats().interval or (None, None)
        found = group_row(group, rate) | {f"{rate}_low": low, f"{rate}_high": high}
    lower, upper = group.of_the_roof or (None, None)
    counted = [p.intensity_counted for p in points if p.intensity_counted is not None]
    modelled = [first.metrics.get(name) for name in ("intensity_min", "intensity_max")]
    bounds = (f"{point.bound}{'' if point.bound_sure else '?'}" for point in points)
    return found | {
        TOKENS_PER_S: group.mean(TOKENS_PER_S),
        "attained_gflops": group.mean("attained_gflops"),
        "intensity_min": min(counted) if counted else modelled[0],
        "intensity_max": max(counted) if counted else modelled[1],
        "fraction_of_roof_min": lower,
        "fraction_of_roof_max": upper,
        "bound": ", ".join(dict.fromkeys(bounds)) or None,
        "verdict": group_verdict(group),
    }


def group_verdict(group: Group) -> str:
    """Return the worst of its runs' verdicts, or how they ended; of imported ones that they are."""
    if group.first.outcome != "ok":
        return ", ".join(sorted({run.outcome for run in group.runs}))
    worst_first = ("invalid", "suspect", "not judged", "clean")
    worst = min((run.verdict for run in group.runs), key=worst_first.index)
    if recorded(group.runs):
        return worst
    words = MODELLED if group.points else "imported"
    return words if worst == "not judged" else f"{worst}; {words}"
