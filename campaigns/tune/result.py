"""What a tuning has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.config import RunConfig
from campaigns.tune.judge import Interval
from campaigns.tune.trial import Trial

Decision = Literal["adopted", "not faster", "no change", "undecided", "failed", "cut short"]


@dataclass(frozen=True)
class Duel:
    """One value of one knob against the setting that was the fastest until then.

    `ratios` are the challenger's images/s over the incumbent's, pair by pair.
    """

    field: str
    value: str
    incumbent: RunConfig
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

    `ratios` are images/s of the best over those of the other, one per round.
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
    duels: tuple[Duel, ...]
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
    def fresh_trials(self) -> int:
        """Trials measured by this session."""
        return sum(trial.fresh for trial in self.trials)
