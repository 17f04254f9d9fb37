"""What a tuning measures and finds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.config import RunConfig, Sample, common_sample, rate_unit
from bench.records import RunRecord

Decision = Literal["adopted", "not faster", "no change", "undecided", "failed", "cut short"]
Stage = Literal["start", "search", "confirmation"]


@dataclass(frozen=True)
class Trial:
    """One measured run of a tuning; `number` counts from 1."""

    number: int
    stage: Stage
    record: RunRecord
    took_s: float
    fresh: bool  # measured now, and not by an earlier session

    @property
    def config(self) -> RunConfig:
        """What was measured."""
        return self.record.config

    @property
    def config_id(self) -> str:
        """What was measured, as an identifier."""
        return self.record.config_id

    @property
    def samples_per_s(self) -> float | None:
        """The pace, or None where nothing whole was measured."""
        measured = self.record.measurement
        if self.record.outcome != "ok" or measured is None:
            return None
        return measured.pace_samples_per_s

    @property
    def rate_words(self) -> str:
        """The pace with its unit, or why there is none."""
        resolved = self.record.resolved
        if self.samples_per_s is None or resolved is None:
            return self.failure or "no result"
        return f"{self.samples_per_s:.4g} {rate_unit(resolved.sample)}"

    @property
    def is_doubtful(self) -> bool:
        """Whether the run was whole and its verdict is not clean."""
        verdict = self.record.verdict
        return self.record.outcome == "ok" and verdict is not None and verdict.level != "clean"

    @property
    def failure(self) -> str | None:
        """Why nothing whole was measured, or None."""
        if self.record.outcome == "ok":
            return None
        if self.record.outcome == "interrupted":
            return f"took longer than the {self.took_s:.0f} s that one trial may"
        return f"{self.record.outcome}: {self.record.reason}"


@dataclass(frozen=True)
class PairedComparison:
    """One value of one knob against the setting that was the fastest until then.

    `ratios` are the challenger's samples/s over the incumbent's, pair by pair.
    """

    field: str
    value: str
    challenger: RunConfig
    decision: Decision
    reason: str
    ratios: tuple[float, ...]
    interval: Interval | None
    trials: tuple[int, ...]  # their numbers

    @property
    def name(self) -> str:
        """The value by its name, such as compile=default."""
        return f"{self.field}={self.value}"


@dataclass(frozen=True)
class Effect:
    """The best setting over another one, from runs made after the search.

    `ratios` are samples/s of the best over those of the other, one per round.
    """

    name: str  # of the knob, "compile"
    best_value: str
    other_value: str
    ratios: tuple[float, ...]
    interval: Interval

    @property
    def confirmed(self) -> bool:
        """Whether the interval says that the best is the faster one."""
        return self.interval.low is not None and self.interval.low > 1


@dataclass(frozen=True)
class TuneResult:
    """The best setting, what each knob gave, and everything that was tried."""

    start: RunConfig
    best: RunConfig
    trials: tuple[Trial, ...]
    comparisons: tuple[PairedComparison, ...]
    confirmed: Effect | None  # of all adopted knobs together, over the start
    unconfirmed: str  # why `confirmed` is None, else empty
    ablation: tuple[Effect, ...]
    not_ablated: tuple[str, ...]  # knobs, each with its reason
    untried: tuple[str, ...]  # values that there was no time for
    left_out: tuple[str, ...]  # values that the configuration forbids, each with its reason
    notes: tuple[str, ...]
    scatter: float | None  # standard deviation of neighbouring runs' ratio; None where unknown
    budget_s: float
    used_s: float
    interrupted: bool

    @property
    def sample(self) -> Sample:
        """What the model trains on; just samples where no trial came so far as to say."""
        known = (trial.record.resolved for trial in self.trials)
        return common_sample(one.sample for one in known if one is not None)

    @property
    def fresh_trials(self) -> int:
        """Trials measured by this session."""
        return sum(trial.fresh for trial in self.trials)


class TuneWatch:
    """Follows a tuning; this base does nothing."""

    def starting(self, config: RunConfig) -> None:
        """A trial is about to be measured."""

    def ended(self, trial: Trial) -> None:
        """A trial has ended, or was taken from an earlier session."""

    def ruled(self, comparison: PairedComparison) -> None:
        """A value of a knob was compared with the fastest setting so far."""


#: Chance, in one comparison, of adopting a knob that does nothing.
ADOPTION_ERROR = 0.01
#: And of giving one up that is faster by more than a tie.
LOSS_ERROR = 0.05
FIRST_TEST, LAST_TEST = 2, 4
#: Gains below this are not worth more time.
TIE = 0.01
#: One window so far below the incumbent's needs no second, unless the machine scatters so much
#: that this many deviations reach further.
FAR_SLOWER = 0.90
_DEVIATIONS = 4

Ruling = Literal["faster", "not faster", "undecided", "measure on"]


@dataclass(frozen=True)
class Interval:
    """A geometric mean of ratios; without bounds where one ratio cannot give any."""

    ratio: float
    low: float | None
    high: float | None


class Noise:
    """How much neighbouring runs of the same settings differ, from every comparison so far."""

    def __init__(self) -> None:
        self._squares = 0.0
        self._degrees = 0

    def add(self, log_ratios: Sequence[float]) -> None:
        """Take in a comparison that is over."""
        self._squares += _squares(log_ratios)
        self._degrees += max(0, len(log_ratios) - 1)

    def add_runs(self, log_rates: Sequence[float]) -> None:
        """Take in runs of one setting; a ratio of two has twice the variance of one."""
        self._squares += 2 * _squares(log_rates)
        self._degrees += len(log_rates) - 1

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the logarithm of two neighbouring runs' ratio, once known."""
        return math.sqrt(self._squares / self._degrees) if self._degrees else None

    @property
    def far_slower(self) -> float:
        """Below this ratio, one pair says enough."""
        return min(FAR_SLOWER, math.exp(-_DEVIATIONS * (self.deviation or 0.0)))

    def interval(self, log_ratios: Sequence[float], below: float, above: float) -> Interval:
        """Return the mean ratio, and bounds that the truth is below or above with these chances."""
        from scipy import special  # as long to import as the command's help takes

        mean = statistics.fmean(log_ratios)
        degrees = self._degrees + len(log_ratios) - 1
        if degrees == 0:
            return Interval(math.exp(mean), None, None)
        pooled = (self._squares + _squares(log_ratios)) / degrees
        own = _squares(log_ratios) / max(1, len(log_ratios) - 1)
        deviation = math.sqrt(max(pooled, own) / len(log_ratios))
        low, high = special.stdtrit(degrees, [below, 1 - above]) * deviation
        return Interval(math.exp(mean), math.exp(mean + low), math.exp(mean + high))


def judge_pairs(log_ratios: Sequence[float], noise: Noise) -> tuple[Ruling, Interval]:
    """Return what the pairs so far say of the challenger, and the interval that says it."""
    tests = LAST_TEST - FIRST_TEST + 1
    found = noise.interval(log_ratios, ADOPTION_ERROR / tests, LOSS_ERROR / tests)
    count = len(log_ratios)
    if count < FIRST_TEST:
        return ("not faster" if found.ratio < noise.far_slower else "measure on"), found
    assert found.low is not None and found.high is not None  # two pairs  # noqa: S101, PT018
    if found.low > 1:
        return "faster", found
    if found.high < 1 + TIE:
        return "not faster", found
    return ("measure on" if count < LAST_TEST else "undecided"), found


def paired_interval(log_ratios: Sequence[float]) -> Interval:
    """Return the mean ratio of one comparison with Student's 95 % interval from its pairs alone."""
    return Noise().interval(log_ratios, 0.025, 0.025)


def _squares(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values)
