"""One challenger against the incumbent, in alternation, until the statistics have seen enough."""

from __future__ import annotations

import math

from bench.config import RunConfig
from campaigns.tune.judge import Interval, Noise, look
from campaigns.tune.knobs import spelled
from campaigns.tune.result import Decision, Duel
from campaigns.tune.trial import Trial
from campaigns.tune.trials import Trials


class Fight:
    """A duel over one field while it goes on; `told` says at any time how it stands."""

    def __init__(
        self,
        trials: Trials,
        noise: Noise,
        incumbent: RunConfig,
        challenger: RunConfig,
        field: str,
        reserve_s: float,
    ) -> None:
        self.decision: Decision = "cut short"
        self.last: Trial | None = None  # of the challenger
        self._trials = trials
        self._noise = noise
        self._incumbent = incumbent
        self._challenger = challenger
        self._field = field
        self._reserve_s = reserve_s
        self._reason = ""
        self._logs: list[float] = []
        self._first_trial = len(trials.log) + 1
        self._interval: Interval | None = None

    def to_the_end(self) -> None:
        """Measure pair after pair. Raises `OutOfTimeError` where the next would not end in time."""
        while self.decision == "cut short":
            tried, kept = self._pair()
            self.last = tried or self.last
            if tried is not None and tried.failure is not None:
                self.decision, self._reason = "failed", tried.failure
            elif tried is None or kept is None or kept.failure is not None:
                why = kept.failure if kept is not None else "it was not measured"
                self.decision, self._reason = "undecided", f"of the setting so far: {why}"
            else:
                self._take(tried, kept)

    def told(self, value: str) -> Duel:
        """Return the duel as it stands, and leave its scatter to the ones after it."""
        if self._logs:
            self._noise.add(self._logs)
        return Duel(
            self._field,
            value,
            self._incumbent,
            self._challenger,
            self.decision,
            self._reason,
            tuple(map(math.exp, self._logs)),
            self._interval,
            tuple(range(self._first_trial, len(self._trials.log) + 1)),
        )

    def _take(self, tried: Trial, kept: Trial) -> None:
        in_use = [getattr(trial.record.resolved, self._field, None) for trial in (tried, kept)]
        if in_use[0] is not None and in_use[0] == in_use[1]:
            self.decision = "no change"
            self._reason = f"{self._field} is {spelled(in_use[0])} here either way"
            self._noise.add_runs([math.log(_rate(tried)), math.log(_rate(kept))])
            return
        self._logs.append(math.log(_rate(tried) / _rate(kept)))
        ruling, self._interval = look(self._logs, self._noise)
        if ruling == "faster":
            self.decision = "adopted"
        elif ruling != "look again" and not (
            len(self._logs) == 1 and (tried.is_doubtful or kept.is_doubtful)
        ):
            self.decision = ruling

    def _pair(self) -> tuple[Trial | None, Trial | None]:
        """Measure both, by turns each of them first; a hopeless challenger alone."""
        first = not self._logs
        pair = (self._challenger, self._incumbent)
        trials = self._trials.together(
            pair if len(self._logs) % 2 == 0 else pair[::-1],
            "search",
            reserve_s=self._reserve_s,
            stop=lambda trial: trial.failure is not None or (first and self._is_hopeless(trial)),
        )
        by_config = {trial.config_id: trial for trial in trials}
        tried, kept = (by_config.get(config.config_id) for config in pair)
        if kept is None and first:
            kept = self._trials.last_of(self._incumbent)
        return tried, kept

    def _is_hopeless(self, trial: Trial) -> bool:
        """Against the incumbent's last run, where that is of the same session."""
        kept = self._trials.last_of(self._incumbent)
        if trial.config_id == self._incumbent.config_id or kept is None or trial.is_doubtful:
            return False
        return kept.fresh == trial.fresh and _rate(trial) / _rate(kept) < self._noise.hopeless


def _rate(trial: Trial) -> float:
    assert trial.images_per_s is not None  # only whole trials are compared  # noqa: S101
    return trial.images_per_s
