"""A tuning: coordinate descent over the knobs, then fresh runs for the numbers that are quoted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from bench.config import RunConfig, spelled
from bench.errors import Unknown
from bench.records import Environment, RunRecord
from bench.records.journal import Clock
from bench.statistics.ratios import (
    LogError,
    RatioEstimate,
    Repeats,
    paired_ratio,
    pooled_scatter,
    repeats_of,
)
from campaigns.knobs import (
    BATCH,
    KNOBS,
    current,
    differing,
    values_to_try,
    with_value,
)
from campaigns.trials import (
    Effect,
    Measure,
    OutOfTimeError,
    PairedComparison,
    StartFailedError,
    Trial,
    Trials,
    TuneResult,
    TuneWatch,
)

#: Rounds that the search leaves time for, and the fewest that are worth an interval.
PLANNED_ROUNDS, FEWEST_ROUNDS = 4, 3
#: With the knobs put back, then of best and start alone.
_ABLATION_ROUNDS, _MOST_ROUNDS = 5, 10
#: Of the budget, however many knobs were adopted.
_MOST_RESERVE = 0.55
#: No device holds as many images at a time.
_ANY_BATCH = 2**20
#: Runs of the start, besides the first, that show how much runs differ.
_START_REPEATS = 2


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


@dataclass(frozen=True)
class Limits:
    """What a tuning may spend and change."""

    budget_s: float
    fixed_batch: bool = False
    max_batch: int | None = None

    @property
    def most(self) -> int:
        """The largest batch size."""
        return self.max_batch or _ANY_BATCH


class Search:
    """Passes over the table of knobs until one changes nothing or time is up."""

    def __init__(
        self,
        trials: Trials,
        start: Trial,
        environment: Environment,
        limits: Limits,
        watch: TuneWatch,
    ) -> None:
        resolved = start.record.resolved
        assert resolved is not None  # the start was measured well  # noqa: S101
        self.start = start
        self.best = start.config
        self.comparisons: list[PairedComparison] = []
        self.untried: list[str] = []
        self.left_out: dict[str, str] = {}
        self.scatter: list[Repeats] = []  # of the ratio of neighbouring runs
        self._trials, self._environment = trials, environment
        self._limits, self._watch = limits, watch
        self._started_as = self._resolved = resolved

    @property
    def adopted(self) -> list[PairedComparison]:
        """The comparisons that changed the fastest setting."""
        return [comparison for comparison in self.comparisons if comparison.decision == "adopted"]

    @property
    def gains(self) -> dict[str, float]:
        """The fields that differ from the start, and by what the search saw each speed up."""
        seen = dict.fromkeys(differing(self.start.config, self.best), 1.0)
        for comparison in self.adopted:
            if comparison.field in seen and comparison.estimate is not None:
                seen[comparison.field] *= comparison.estimate.ratio
        return seen

    def run(self) -> None:
        """Search; what there was no time for is in `untried` afterwards."""
        try:
            # the scatter is to be known before the first comparisons, of the best knobs
            repeats = [self.start.config] * _START_REPEATS
            again = self._trials.together(repeats, "start", reserve_s=self._reserve_s(1))
            rates = [trial.samples_per_s for trial in (self.start, *again)]
            self._note_runs([rate for rate in rates if rate is not None])
            while self._pass():
                pass
        except OutOfTimeError:
            self.untried = self._not_tried()

    def _pass(self) -> bool:
        before = len(self.adopted)
        for knob in KNOBS[self._resolved.backend]:
            if knob.field == BATCH and not self._limits.fixed_batch:
                self._try_batches()
            for value in values_to_try(knob, self._environment, self.best, self._resolved):
                # An earlier value of the same knob may just have been adopted.
                if value != current(self.best, self._resolved, knob.field):
                    self._try(knob.field, value)
        return len(self.adopted) > before

    def _try_batches(self) -> None:
        """Double while that is faster; where the first doubling is not, halve likewise."""
        before = self.best
        for factor in (2.0, 0.5):
            while 1 <= (size := int(self._resolved.batch_size * factor)) <= self._limits.most:
                if not self._try(BATCH, str(size)):
                    break
            if self.best is not before:
                return

    def _try(self, field: str, value: str) -> bool:
        """Return whether the value was adopted, now."""
        challenger = with_value(self.best, field, value)
        if isinstance(challenger, str):
            self.left_out[f"{field}={value}"] = challenger
            return False
        if self._is_settled(field, value, challenger):
            return False
        comparison = PairedComparison(field, value, challenger, len(self._trials.log) + 1)
        self.comparisons.append(comparison)
        resolved = self._resolved
        try:
            while comparison.decision == "cut short":
                tried, kept = self._pair(comparison)
                self._judge(comparison, tried, kept)
                resolved = (tried and tried.record.resolved) or resolved
        finally:  # also when time is up, or the user interrupts
            comparison.end_trial = len(self._trials.log) + 1
            if comparison.log_ratios:
                self.scatter.append(repeats_of(comparison.ratios))
            self._watch.ruled(comparison)
        if comparison.decision == "adopted":
            self.best, self._resolved = challenger, resolved
        return comparison.decision == "adopted"

    def _judge(self, comparison: PairedComparison, tried: Trial | None, kept: Trial | None) -> None:
        if tried is not None and tried.failure is not None:
            comparison.decision, comparison.reason = "failed", tried.failure
            return
        if tried is None or kept is None or kept.failure is not None:
            why = kept.failure if kept is not None else "it was not measured"
            comparison.decision, comparison.reason = "undecided", f"of the setting so far: {why}"
            return
        name = comparison.field
        in_use = [getattr(trial.record.resolved, name, None) for trial in (tried, kept)]
        if in_use[0] is not None and in_use[0] == in_use[1]:
            comparison.decision = "no change"
            comparison.reason = f"{name} is {spelled(in_use[0])} here either way"
            self._note_runs([tried.rate, kept.rate])
            return
        logs = comparison.log_ratios
        logs.append(math.log(tried.rate / kept.rate))
        ruling, comparison.estimate = judge_pairs(logs, self.scatter)
        doubtful = len(logs) == 1 and (tried.is_doubtful or kept.is_doubtful)
        if ruling == "faster":
            comparison.decision = "adopted"
        elif ruling != "measure on" and not doubtful:
            comparison.decision = ruling

    def _note_runs(self, rates: Sequence[float]) -> None:
        """Take in runs of one setting; a ratio of two has twice the variance of one."""
        runs = repeats_of(rates)
        if runs.log_variance is not None:
            self.scatter.append(replace(runs, log_variance=2 * runs.log_variance))

    def _pair(self, comparison: PairedComparison) -> tuple[Trial | None, Trial | None]:
        """Measure both, by turns each of them first; a challenger far too slow alone."""
        count = len(comparison.log_ratios)
        pair = (comparison.challenger, self.best)

        def is_enough(trial: Trial) -> bool:
            return trial.failure is not None or (count == 0 and self._is_far_slower(trial))

        trials = self._trials.together(
            pair if count % 2 == 0 else pair[::-1],
            "search",
            reserve_s=self._reserve_s(len(self.adopted) + 1),
            stop=is_enough,
        )
        by_config = {trial.config_id: trial for trial in trials}
        tried, kept = (by_config.get(config.config_id) for config in pair)
        if kept is None and count == 0:
            kept = self._trials.last_of(self.best)
        return tried, kept

    def _is_far_slower(self, trial: Trial) -> bool:
        """Against the incumbent's last run, where that is of the same session."""
        kept = self._trials.last_of(self.best)
        if trial.config_id == self.best.config_id or kept is None or trial.is_doubtful:
            return False
        limit = far_slower(pooled_scatter(self.scatter))
        return kept.fresh == trial.fresh and trial.rate / kept.rate < limit

    def _reserve_s(self, adopted: int) -> float:
        """Seconds of the budget to keep: what confirming so many adopted knobs will take."""
        round_size = 2 + adopted if adopted > 1 else 2  # a single knob put back is the start
        planned_s = PLANNED_ROUNDS * round_size * self._trials.expected_s(self.best)
        return min(planned_s, _MOST_RESERVE * self._limits.budget_s)

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
        tried = {(comparison.field, comparison.value) for comparison in self.comparisons}
        names = [
            f"{knob.field}={value}"
            for knob in KNOBS[self._resolved.backend]
            for value in values_to_try(knob, self._environment, self.best, self._resolved)
            if (knob.field, value) not in tried
            and value != current(self.start.config, self._started_as, knob.field)
            and isinstance(with_value(self.best, knob.field, value), RunConfig)
        ]
        if not self._limits.fixed_batch and BATCH not in {field for field, _ in tried}:
            names.append("batch_size doubled and halved")
        return names


class Confirmation:
    """Best against start; `gains` are the adopted fields and what the search saw of each."""

    def __init__(
        self, trials: Trials, start: Trial, best: RunConfig, gains: Mapping[str, float]
    ) -> None:
        self.not_ablated: list[str] = []
        self.notes: list[str] = []
        self._trials, self._best = trials, best
        self._start, self._resolved = start.config, start.record.resolved
        self._put_back: dict[str, RunConfig] = {}
        for field in sorted(gains, key=lambda field: -gains[field]):
            config = with_value(best, field, getattr(start.config, field))
            if isinstance(config, str):
                self.not_ablated.append(f"{field}: {config}")
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
        effects = []
        for field, config in self._put_back.items():
            before = spelled(getattr(self._start, field))
            if before == "auto":
                before = f"{spelled(getattr(self._resolved, field, before))} (auto)"
            effect = self._effect(field, spelled(getattr(self._best, field)), before, config)
            effects += [effect] if effect else []
        return tuple(sorted(effects, key=lambda effect: -effect.estimate.ratio))

    def _keep_what_fits(self) -> None:
        """Leave out the smallest gains where time is too short for a few rounds of all."""
        round_s = FEWEST_ROUNDS * self._trials.expected_s(self._best)
        while len(self._put_back) > 1:
            if round_s * len(self._settings(self._put_back)) <= self._trials.left_s:
                return
            field, _ = self._put_back.popitem()
            self.not_ablated.append(f"{field}: no time was left for it")

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
        measured = {config_id: rate for config_id, rate in rates.items() if rate is not None}
        if len(measured) == len(order):
            self._rounds.append(measured)
            return True
        failed, why = trials[-1].config_id, trials[-1].failure
        if failed in (self._best.config_id, self._start.config_id):
            self.notes.append(f"the confirmation ended early: {why}")
            return False
        # It goes on without a knob whose old value fails beside the others.
        field = next(name for name, config in back.items() if config.config_id == failed)
        del self._put_back[field]
        self.not_ablated.append(f"{field}: {why}")
        return True

    def _effect(self, name: str, best: str, other_value: str, other: RunConfig) -> Effect | None:
        tuned, slower = self._best.config_id, other.config_id
        ratios = tuple(rates[tuned] / rates[slower] for rates in self._rounds if slower in rates)
        if not ratios:
            return None
        estimate = paired_ratio(list(map(math.log, ratios)))
        return Effect(name, best, other_value, ratios, estimate)


def tune(
    config: RunConfig,
    environment: Environment,
    measure: Measure,
    limits: Limits,
    *,
    known: Iterable[RunRecord] = (),
    watch: TuneWatch | None = None,
    clock: Clock = time.monotonic,
    began_s: float | None = None,
) -> TuneResult:
    """Return the fastest setting of `config` that is found on `environment` within the budget.

    `known` are records of the campaign on this environment: what they say is not measured again.
    `began_s` is the reading of `clock` from which the budget counts, by default that of now.
    Ctrl-C gives what was found until then. Raises `StartFailedError`.
    """
    watch = watch or TuneWatch()
    trials = Trials(measure, known, watch, limits.budget_s, clock, began_s)
    notes: list[str] = []
    search: Search | None = None
    confirmation: Confirmation | None = None
    why = "nothing that was tried is faster than the start"
    interrupted = False
    try:
        start = _measured_start(config, limits, trials, notes)
        search = Search(trials, start, environment, limits, watch)
        search.run()
        if search.best.config_id != start.config.config_id:
            confirmation = Confirmation(trials, start, search.best, search.gains)
            confirmation.run()
            why = "no time was left to measure it again"
    except KeyboardInterrupt:
        whole = next((trial for trial in trials.log if trial.failure is None), None)
        if whole is None:
            raise
        interrupted, why = True, "interrupted before it was"
        search = search or Search(trials, whole, environment, limits, watch)
    confirmed = confirmation.together if confirmation else None
    scatter = pooled_scatter(search.scatter)
    return TuneResult(
        start=search.start.config,
        best=search.best,
        trials=tuple(trials.log),
        comparisons=tuple(search.comparisons),
        confirmed=confirmed,
        unconfirmed="" if confirmed else why,
        ablation=confirmation.ablation if confirmation else (),
        not_ablated=tuple(confirmation.not_ablated) if confirmation else (),
        untried=tuple(search.untried),
        left_out=tuple(f"{value}: {why}" for value, why in search.left_out.items()),
        notes=(*notes, *(confirmation.notes if confirmation else ())),
        scatter=scatter.deviation if scatter else None,
        budget_s=limits.budget_s,
        used_s=trials.used_s,
        interrupted=interrupted,
    )


def _measured_start(config: RunConfig, limits: Limits, trials: Trials, notes: list[str]) -> Trial:
    """Measure the starting configuration, with a batch that fits; a smaller one goes to `notes`."""
    while True:
        try:
            [trial] = trials.together([config], "start")
        except OutOfTimeError:
            raise StartFailedError(trials.log[-1]) from None
        resolved = trial.record.resolved
        if trial.failure is None and resolved and resolved.batch_size <= limits.most:
            return trial
        out_of_memory = trial.record.outcome == "oom" and not limits.fixed_batch
        if resolved is None or not (trial.failure is None or out_of_memory):
            raise StartFailedError(trial)
        size = limits.max_batch if trial.failure is None else resolved.batch_size // 2
        smaller = with_value(config, BATCH, size)
        if isinstance(smaller, str):
            raise StartFailedError(trial)
        why = trial.failure or f"max_batch={limits.max_batch}"
        notes.append(f"starts with batch_size={size}, not {resolved.batch_size}: {why}")
        config = smaller
