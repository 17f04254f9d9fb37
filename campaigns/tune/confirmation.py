"""Fresh runs after the search: what all adopted knobs gave together, and each by itself.

A search reports the luckiest of many comparisons, so none of its numbers is quoted. Here the best
setting, the start, and the best with each adopted knob put back are measured in rounds, each
round in an order of its own: what drifts falls on all alike, and each round gives one ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from bench.config import RunConfig, spelled
from campaigns.tune.knobs import with_value
from campaigns.tune.result import Effect, Trial
from campaigns.tune.stopping_rule import paired_interval
from campaigns.tune.trials import OutOfTimeError, Trials

#: Rounds that the search leaves time for, and the fewest that are worth an interval.
PLANNED_ROUNDS, FEWEST_ROUNDS = 4, 3
#: With the knobs put back, then of best and start alone.
_ABLATION_ROUNDS, _MOST_ROUNDS = 5, 10
#: Of the budget, however many knobs were adopted.
_MOST_RESERVE = 0.55


def reserve_s(trials: Trials, best: RunConfig, adopted: int) -> float:
    """Return the seconds that confirming so many adopted knobs will take."""
    round_size = 2 + adopted if adopted > 1 else 2  # a single knob put back is the start
    planned_s = PLANNED_ROUNDS * round_size * trials.expected_s(best)
    return min(planned_s, _MOST_RESERVE * trials.budget.total_s)


class Confirmation:
    """Best against start; `gains` are the adopted fields and what the search saw of each."""

    def __init__(
        self, trials: Trials, start: Trial, best: RunConfig, gains: Mapping[str, float]
    ) -> None:
        self.not_ablated: dict[str, str] = {}
        self.notes: list[str] = []
        self._trials = trials
        self._start = start.config
        self._resolved = start.record.resolved
        self._best = best
        self._put_back: dict[str, RunConfig] = {}
        for field in sorted(gains, key=lambda field: -gains[field]):
            config = with_value(best, field, getattr(start.config, field))
            if isinstance(config, str):
                self.not_ablated[field] = config
            else:
                self._put_back[field] = config
        self._rounds: list[dict[str, float]] = []  # config_id -> samples/s

    def run(self) -> None:
        """Measure rounds until there are enough or time is up."""
        self._keep_what_fits()
        ablating = True
        for number in range(_MOST_ROUNDS):
            ablating = ablating and number < _ABLATION_ROUNDS
            try:
                if not self._round(number, self._put_back if ablating else {}):
                    return
            except OutOfTimeError:
                if not ablating:
                    return
                ablating = False  # best and start alone may still fit

    @property
    def together(self) -> Effect | None:
        """All adopted knobs together, or None where no round was measured."""
        return self._effect("all of them", "tuned", "start", self._start)

    @property
    def ablation(self) -> tuple[Effect, ...]:
        """Each adopted knob by itself, the largest gain first."""
        effects = [
            self._effect(field, spelled(getattr(self._best, field)), self._before(field), config)
            for field, config in self._put_back.items()
        ]
        known = [effect for effect in effects if effect is not None]
        return tuple(sorted(known, key=lambda effect: -effect.interval.ratio))

    def _before(self, field: str) -> str:
        value = spelled(getattr(self._start, field))
        meant = getattr(self._resolved, field, value)
        return value if value != "auto" else f"{spelled(meant)} (auto)"

    def _keep_what_fits(self) -> None:
        """Leave out the smallest gains where time is too short for a few rounds of all."""
        expected_s = self._trials.expected_s(self._best)
        while self._put_back:
            round_s = len(self._settings(self._put_back)) * expected_s
            if FEWEST_ROUNDS * round_s <= self._trials.budget.left_s or len(self._put_back) == 1:
                return
            field, _ = self._put_back.popitem()
            self.not_ablated[field] = "no time was left for it"

    def _settings(self, back: Mapping[str, RunConfig]) -> list[RunConfig]:
        """What a round measures; the only adopted knob put back is the start."""
        configs = (self._best, self._start, *back.values())
        return list({config.config_id: config for config in configs}.values())

    def _round(self, number: int, back: Mapping[str, RunConfig]) -> bool:
        """Measure one round; return whether another makes sense."""
        order = self._settings(back)
        Random(number).shuffle(order)  # noqa: S311 - an order, not a secret
        trials = self._trials.together(
            order, "confirmation", stop=lambda trial: trial.failure is not None
        )
        rates = {trial.config_id: trial.samples_per_s for trial in trials}
        known = {config_id: rate for config_id, rate in rates.items() if rate is not None}
        if len(known) == len(order):
            self._rounds.append(known)
            return True
        return self._give_up(trials[-1].config, trials[-1].failure or "")

    def _give_up(self, config: RunConfig, why: str) -> bool:
        """Go on without a knob whose old value fails beside the others."""
        kept = {self._best.config_id, self._start.config_id}
        for field, variant in self._put_back.items():
            if variant.config_id == config.config_id and variant.config_id not in kept:
                del self._put_back[field]
                self.not_ablated[field] = why
                return True
        self.notes.append(f"the confirmation ended early: {why}")
        return False

    def _effect(self, name: str, best: str, other_value: str, other: RunConfig) -> Effect | None:
        pairs = [
            (found[self._best.config_id], found[other.config_id])
            for found in self._rounds
            if other.config_id in found
        ]
        if not pairs:
            return None
        ratios = tuple(best_rate / rate for best_rate, rate in pairs)
        return Effect(name, best, other_value, ratios, paired_interval(list(map(math.log, ratios))))
