"""What a tuning measures and finds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.config import RunConfig, Sample, common_sample
from bench.errors import Unknown
from bench.statistics.ratios import LogError, RatioEstimate, Repeats, paired_ratio, pooled_scatter
from campaigns.tune.trials import Trial, TrialWatch

Decision = Literal["adopted", "not faster", "no change", "undecided", "failed", "cut short"]


@dataclass
class PairedComparison:
    """One value of one knob against the setting that was the fastest until then.

    `log_ratios` are of the challenger's samples/s over the incumbent's; `end_trial` is the number
    after its last one.
    """

    field: str
    value: str
    challenger: RunConfig
    first_trial: int
    end_trial: int = 0
    decision: Decision = "cut short"
    reason: str = ""
    log_ratios: list[float] = dataclasses.field(default_factory=list)
    estimate: RatioEstimate | None = None

    @property
    def name(self) -> str:
        """The value by its name, such as compile=default."""
        return f"{self.field}={self.value}"

    @property
    def ratios(self) -> tuple[float, ...]:
        """The challenger's samples/s over the incumbent's, pair by pair."""
        return tuple(map(math.exp, self.log_ratios))

    @property
    def trials(self) -> range:
        """The numbers of its trials."""
        return range(self.first_trial, self.end_trial)


@dataclass(frozen=True)
class Effect:
    """The best setting over another one, from runs made after the search.

    `ratios` are samples/s of the best over those of the other, one per round.
    """

    name: str  # of the knob, "compile"
    best_value: str
    other_value: str
    ratios: tuple[float, ...]
    estimate: RatioEstimate

    @property
    def confirmed(self) -> bool:
        """Whether the interval says that the best is the faster one."""
        low, _ = self.estimate.ends
        return low is not None and low > 1


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
        resolved = (trial.record.resolved for trial in self.trials)
        return common_sample(settings.sample for settings in resolved if settings is not None)

    @property
    def fresh_trials(self) -> int:
        """Trials measured by this session."""
        return sum(trial.fresh for trial in self.trials)


class TuneWatch(TrialWatch):
    """Follows a tuning; this base does nothing."""

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


def far_slower(scatter: LogError | Unknown) -> float:
    """Return the ratio below which one pair says enough."""
    deviation = scatter.deviation if scatter else 0.0
    return min(FAR_SLOWER, math.exp(-_DEVIATIONS * deviation))


def judge_pairs(
    log_ratios: Sequence[float], before: Sequence[Repeats]
) -> tuple[Ruling, RatioEstimate]:
    """Return what the pairs so far say of the challenger, beside the comparisons `before`."""
    estimate = paired_ratio(log_ratios, before)
    count, tests = len(log_ratios), LAST_TEST - FIRST_TEST + 1
    if count < FIRST_TEST:
        slower = estimate.ratio < far_slower(pooled_scatter(before))
        return ("not faster" if slower else "measure on"), estimate
    if estimate.p_above(1) < ADOPTION_ERROR / tests:
        return "faster", estimate
    if estimate.p_below(1 + TIE) < LOSS_ERROR / tests:
        return "not faster", estimate
    return ("measure on" if count < LAST_TEST else "undecided"), estimate
