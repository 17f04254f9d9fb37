"""Coordinate descent: one knob after the other against the fastest setting so far."""

from __future__ import annotations

import math
from collections.abc import Callable

from bench.config import RunConfig
from bench.records import Backend, Environment, ResolvedConfig
from campaigns.tune.duel import Fight
from campaigns.tune.judge import Noise
from campaigns.tune.knobs import BATCH, KNOBS, Knob, current, differing, values_to_try, with_value
from campaigns.tune.result import Duel
from campaigns.tune.trial import Trial
from campaigns.tune.trials import OutOfTimeError, Trials

#: Runs of the start, besides the first, that tell how much runs differ.
_START_REPEATS = 2


class Search:
    """Passes over the table of knobs until one changes nothing or time is up.

    `reserve_s` tells how much of the budget must be left, from the number of adopted knobs.
    `largest_batch` None keeps the batch size.
    """

    def __init__(
        self,
        trials: Trials,
        start: Trial,
        environment: Environment,
        reserve_s: Callable[[int], float],
        *,
        largest_batch: int | None,
    ) -> None:
        resolved = start.record.resolved
        assert resolved is not None  # the start was measured well  # noqa: S101
        self.best = start.config
        self._start = start.config
        self._start_trial = start
        self.duels: list[Duel] = []
        self.untried: list[str] = []
        self.left_out: dict[str, str] = {}
        self._resolved: ResolvedConfig = resolved
        self._trials = trials
        self._environment = environment
        self._backend: Backend = resolved.backend
        self._reserve_s = reserve_s
        self._largest_batch = largest_batch
        self.noise = Noise()

    @property
    def adopted(self) -> list[Duel]:
        """The duels that changed the fastest setting."""
        return [duel for duel in self.duels if duel.decision == "adopted"]

    @property
    def gains(self) -> dict[str, float]:
        """The fields that differ from the start, and by what the search saw each speed up."""
        seen: dict[str, float] = {}
        for duel in self.adopted:
            assert duel.interval is not None  # it decided  # noqa: S101
            seen[duel.field] = seen.get(duel.field, 1.0) * duel.interval.ratio
        return {name: seen[name] for name in differing(self._start, self.best)}

    def run(self) -> None:
        """Search; what there was no time for is in `untried` afterwards."""
        try:
            self._learn_noise()
            while self._pass():
                pass
        except OutOfTimeError:
            self.untried = self._not_tried()

    def _learn_noise(self) -> None:
        """Repeat the start: without this the first duels, of the best knobs, would know nothing."""
        again = self._trials.together(
            [self._start] * _START_REPEATS, "start", reserve_s=self._reserve_s(1)
        )
        rates = [trial.images_per_s for trial in (self._start_trial, *again)]
        self.noise.add_runs([math.log(rate) for rate in rates if rate is not None])

    def _pass(self) -> bool:
        before = len(self.adopted)
        for knob in KNOBS[self._backend]:
            if knob.field == BATCH:
                self._try_batches()
            for value in self._values(knob):
                # An earlier value of the same knob may just have been adopted.
                if value != current(self.best, self._resolved, knob.field):
                    self._try(knob.field, value)
        return len(self.adopted) > before

    def _values(self, knob: Knob) -> list[str]:
        return values_to_try(knob, self._environment, self.best, self._resolved)

    def _try_batches(self) -> None:
        """Double while that is faster; where the first doubling is not, halve likewise."""
        if self._largest_batch is None:
            return
        for factor in (2.0, 0.5):
            adopted = False
            while 1 <= (size := int(self._resolved.batch_size * factor)) <= self._largest_batch:
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
        return self._duel(field, value, challenger)

    def _is_settled(self, field: str, value: str, challenger: RunConfig) -> bool:
        """Whether this was tried beside the same knobs, or is hopeless beside any."""
        return any(
            (duel.field, duel.value) == (field, value)
            and (
                duel.decision in ("failed", "no change")
                or (duel.decision == "not faster" and len(duel.ratios) == 1)
                or duel.challenger.config_id == challenger.config_id
            )
            for duel in self.duels
        )

    def _duel(self, field: str, value: str, challenger: RunConfig) -> bool:
        reserve_s = self._reserve_s(len(self.adopted) + 1)
        fight = Fight(self._trials, self.noise, self.best, challenger, field, reserve_s)
        try:
            fight.to_the_end()
        finally:  # also when time is up, or the user has had enough
            self.duels.append(fight.told(value))
            self._trials.watch.ruled(self.duels[-1])
        if fight.decision == "adopted":
            self._adopt(challenger, fight.last)
        return fight.decision == "adopted"

    def _adopt(self, challenger: RunConfig, trial: Trial | None) -> None:
        self.best = challenger
        if trial is not None and trial.record.resolved is not None:
            self._resolved = trial.record.resolved

    def _not_tried(self) -> list[str]:
        """Values of the table, and batch sizes, that are allowed and no duel was about."""
        known = {(duel.field, duel.value) for duel in self.duels}
        started_as = self._start_trial.record.resolved or self._resolved
        names = [
            f"{knob.field}={value}"
            for knob in KNOBS[self._backend]
            for value in self._values(knob)
            if (knob.field, value) not in known
            and value != current(self._start, started_as, knob.field)
            and isinstance(with_value(self.best, knob.field, value), RunConfig)
        ]
        batches_known = any(duel.field == BATCH for duel in self.duels)
        if self._largest_batch is not None and not batches_known:
            names.append("batch_size doubled and halved")
        return names
