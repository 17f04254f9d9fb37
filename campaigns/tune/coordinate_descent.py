"""Coordinate descent: one knob after the other against the fastest setting so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bench.config import RunConfig, spelled
from bench.records import Environment, ResolvedConfig
from campaigns.tune.knobs import (
    BATCH,
    KNOBS,
    current,
    differing,
    values_to_try,
    with_value,
)
from campaigns.tune.result import Decision, PairedComparison, Trial
from campaigns.tune.stopping_rule import Interval, Noise, judge_pairs
from campaigns.tune.trials import OutOfTimeError, Trials

#: Runs of the start, besides the first, that show how much runs differ.
_START_REPEATS = 2


@dataclass
class OngoingComparison:
    """A challenger against the incumbent, in alternation, until the statistics have seen enough."""

    trials: Trials
    noise: Noise
    incumbent: RunConfig
    challenger: RunConfig
    field: str
    reserve_s: float
    decision: Decision = "cut short"
    last: Trial | None = None  # of the challenger
    reason: str = ""
    interval: Interval | None = None

    def __post_init__(self) -> None:
        self._logs: list[float] = []
        self._first_trial = len(self.trials.log) + 1

    def run(self) -> None:
        """Measure pair after pair. Raises `OutOfTimeError` where the next would not end in time."""
        while self.decision == "cut short":
            tried, kept = self._pair()
            self.last = tried or self.last
            if tried is not None and tried.failure is not None:
                self.decision, self.reason = "failed", tried.failure
            elif tried is None or kept is None or kept.failure is not None:
                why = kept.failure if kept is not None else "it was not measured"
                self.decision, self.reason = "undecided", f"of the setting so far: {why}"
            else:
                self._take(tried, kept)

    def result(self, value: str) -> PairedComparison:
        """Return the comparison as it stands; its scatter counts in the ones after it."""
        if self._logs:
            self.noise.add(self._logs)
        return PairedComparison(
            self.field,
            value,
            self.incumbent,
            self.challenger,
            self.decision,
            self.reason,
            tuple(map(math.exp, self._logs)),
            self.interval,
            tuple(range(self._first_trial, len(self.trials.log) + 1)),
        )

    def _take(self, tried: Trial, kept: Trial) -> None:
        in_use = [getattr(trial.record.resolved, self.field, None) for trial in (tried, kept)]
        if in_use[0] is not None and in_use[0] == in_use[1]:
            self.decision = "no change"
            self.reason = f"{self.field} is {spelled(in_use[0])} here either way"
            self.noise.add_runs([math.log(_rate(tried)), math.log(_rate(kept))])
            return
        self._logs.append(math.log(_rate(tried) / _rate(kept)))
        ruling, self.interval = judge_pairs(self._logs, self.noise)
        if ruling == "faster":
            self.decision = "adopted"
        elif ruling != "measure on" and not (
            len(self._logs) == 1 and (tried.is_doubtful or kept.is_doubtful)
        ):
            self.decision = ruling

    def _pair(self) -> tuple[Trial | None, Trial | None]:
        """Measure both, by turns each of them first; a challenger far too slow alone."""
        first = not self._logs
        pair = (self.challenger, self.incumbent)
        trials = self.trials.together(
            pair if len(self._logs) % 2 == 0 else pair[::-1],
            "search",
            reserve_s=self.reserve_s,
            stop=lambda trial: trial.failure is not None or (first and self._is_far_slower(trial)),
        )
        by_config = {trial.config_id: trial for trial in trials}
        tried, kept = (by_config.get(config.config_id) for config in pair)
        if kept is None and first:
            kept = self.trials.last_of(self.incumbent)
        return tried, kept

    def _is_far_slower(self, trial: Trial) -> bool:
        """Against the incumbent's last run, where that is of the same session."""
        kept = self.trials.last_of(self.incumbent)
        if trial.config_id == self.incumbent.config_id or kept is None or trial.is_doubtful:
            return False
        return kept.fresh == trial.fresh and _rate(trial) / _rate(kept) < self.noise.far_slower


def _rate(trial: Trial) -> float:
    assert trial.samples_per_s is not None  # only whole trials are compared  # noqa: S101
    return trial.samples_per_s


@dataclass
class Search:
    """Passes over the table of knobs until one changes nothing or time is up.

    `reserve_s` gives the seconds of the budget to keep, from the number of adopted knobs.
    `largest_batch` None keeps the batch size.
    """

    trials: Trials
    start: Trial
    environment: Environment
    reserve_s: Callable[[int], float]
    largest_batch: int | None

    def __post_init__(self) -> None:
        resolved = self.start.record.resolved
        assert resolved is not None  # the start was measured well  # noqa: S101
        self.best = self.start.config
        self.comparisons: list[PairedComparison] = []
        self.untried: list[str] = []
        self.left_out: dict[str, str] = {}
        self._resolved: ResolvedConfig = resolved
        self.noise = Noise()

    @property
    def adopted(self) -> list[PairedComparison]:
        """The comparisons that changed the fastest setting."""
        return [comparison for comparison in self.comparisons if comparison.decision == "adopted"]

    @property
    def gains(self) -> dict[str, float]:
        """The fields that differ from the start, and by what the search saw each speed up."""
        seen: dict[str, float] = {}
        for comparison in self.adopted:
            assert comparison.interval is not None  # it decided  # noqa: S101
            seen[comparison.field] = seen.get(comparison.field, 1.0) * comparison.interval.ratio
        return {name: seen[name] for name in differing(self.start.config, self.best)}

    def run(self) -> None:
        """Search; what there was no time for is in `untried` afterwards."""
        try:
            self._learn_noise()
            while self._pass():
                pass
        except OutOfTimeError:
            self.untried = self._not_tried()

    def _learn_noise(self) -> None:
        """Repeat the start, to know the scatter before the first comparisons, of the best knobs."""
        again = self.trials.together(
            [self.start.config] * _START_REPEATS, "start", reserve_s=self.reserve_s(1)
        )
        rates = [trial.samples_per_s for trial in (self.start, *again)]
        self.noise.add_runs([math.log(rate) for rate in rates if rate is not None])

    def _pass(self) -> bool:
        before = len(self.adopted)
        for knob in KNOBS[self._resolved.backend]:
            if knob.field == BATCH:
                self._try_batches()
            for value in values_to_try(knob, self.environment, self.best, self._resolved):
                # An earlier value of the same knob may just have been adopted.
                if value != current(self.best, self._resolved, knob.field):
                    self._try(knob.field, value)
        return len(self.adopted) > before

    def _try_batches(self) -> None:
        """Double while that is faster; where the first doubling is not, halve likewise."""
        if self.largest_batch is None:
            return
        for factor in (2.0, 0.5):
            adopted = False
            while 1 <= (size := int(self._resolved.batch_size * factor)) <= self.largest_batch:
                if not self._try(BATCH, str(size)):
                    break
                adopted = True
            if adopted:
                return

    def _try(self, field: str, value: str) -> bool:
        """Return whether the value was adopted, now."""
        challenger = with_value(self.best, field, value)
        if isinstance(challenger, str):
            self.left_out[f"{field}={value}"] = challenger
            return False
        if self._is_settled(field, value, challenger):
            return False
        comparison = OngoingComparison(
            *(self.trials, self.noise, self.best, challenger, field),
            reserve_s=self.reserve_s(len(self.adopted) + 1),
        )
        try:
            comparison.run()
        finally:  # also when time is up, or the user interrupts
            self.comparisons.append(comparison.result(value))
            self.trials.watch.ruled(self.comparisons[-1])
        if comparison.decision == "adopted":
            self.best = challenger
            if comparison.last is not None and comparison.last.record.resolved is not None:
                self._resolved = comparison.last.record.resolved
        return comparison.decision == "adopted"

    def _is_settled(self, field: str, value: str, challenger: RunConfig) -> bool:
        """Whether this was tried beside the same knobs, or cannot be faster beside any."""
        return any(
            (comparison.field, comparison.value) == (field, value)
            and (
                comparison.decision in ("failed", "no change")
                or (comparison.decision == "not faster" and len(comparison.ratios) == 1)
                or comparison.challenger.config_id == challenger.config_id
            )
            for comparison in self.comparisons
        )

    def _not_tried(self) -> list[str]:
        """Values of the table, and batch sizes, that are allowed and were not compared."""
        known = {(comparison.field, comparison.value) for comparison in self.comparisons}
        started_as = self.start.record.resolved or self._resolved
        names = [
            f"{knob.field}={value}"
            for knob in KNOBS[self._resolved.backend]
            for value in values_to_try(knob, self.environment, self.best, self._resolved)
            if (knob.field, value) not in known
            and value != current(self.start.config, started_as, knob.field)
            and isinstance(with_value(self.best, knob.field, value), RunConfig)
        ]
        batches_known = any(comparison.field == BATCH for comparison in self.comparisons)
        if self.largest_batch is not None and not batches_known:
            names.append("batch_size doubled and halved")
        return names
