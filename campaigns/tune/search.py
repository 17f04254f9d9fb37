"""A tuning: coordinate descent over the knobs, then fresh runs for the numbers that are quoted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from bench.config import RunConfig, spelled
from bench.records import Environment, ResolvedConfig, RunRecord
from bench.records.journal import Clock
from bench.statistics.ratios import Repeats, paired_ratio, pooled_scatter, repeats_of
from campaigns.tune.knobs import (
    BATCH,
    KNOBS,
    current,
    differing,
    values_to_try,
    with_value,
)
from campaigns.tune.result import (
    Effect,
    PairedComparison,
    Trial,
    TuneResult,
    TuneWatch,
    far_slower,
    judge_pairs,
)
from campaigns.tune.trials import (
    Limits,
    Measure,
    OutOfTimeError,
    PastTrials,
    StartFailedError,
    Trials,
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


def _rate(trial: Trial) -> float:
    assert trial.samples_per_s is not None  # only whole trials are compared  # noqa: S101
    return trial.samples_per_s


@dataclass
class Search:
    """Passes over the table of knobs until one changes nothing or time is up.

    `largest_batch` None keeps the batch size.
    """

    trials: Trials
    start: Trial
    environment: Environment
    largest_batch: int | None

    def __post_init__(self) -> None:
        resolved = self.start.record.resolved
        assert resolved is not None  # the start was measured well  # noqa: S101
        self.best = self.start.config
        self.comparisons: list[PairedComparison] = []
        self.untried: list[str] = []
        self.left_out: dict[str, str] = {}
        self._started_as = self._resolved = resolved
        self.scatter: list[Repeats] = []  # of the ratio of neighbouring runs

    @property
    def adopted(self) -> list[PairedComparison]:
        """The comparisons that changed the fastest setting."""
        return [comparison for comparison in self.comparisons if comparison.decision == "adopted"]

    @property
    def gains(self) -> dict[str, float]:
        """The fields that differ from the start, and by what the search saw each speed up."""
        seen: dict[str, float] = {}
        for comparison in self.adopted:
            assert comparison.estimate is not None  # it decided  # noqa: S101
            seen[comparison.field] = seen.get(comparison.field, 1.0) * comparison.estimate.ratio
        return {name: seen[name] for name in differing(self.start.config, self.best)}

    def run(self) -> None:
        """Search; what there was no time for is in `untried` afterwards."""
        try:
            # the scatter is to be known before the first comparisons, of the best knobs
            repeats = [self.start.config] * _START_REPEATS
            again = self.trials.together(repeats, "start", reserve_s=self._reserve_s(1))
            rates = [trial.samples_per_s for trial in (self.start, *again)]
            self._note_runs([rate for rate in rates if rate is not None])
            while self._pass():
                pass
        except OutOfTimeError:
            self.untried = self._not_tried()

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
        comparison = PairedComparison(field, value, challenger, len(self.trials.log) + 1)
        self.comparisons.append(comparison)
        resolved = self._resolved
        try:
            while comparison.decision == "cut short":
                resolved = self._measure_pair(comparison) or resolved
        finally:  # also when time is up, or the user interrupts
            comparison.end_trial = len(self.trials.log) + 1
            if comparison.log_ratios:
                self.scatter.append(repeats_of(comparison.ratios))
            self.trials.watch.ruled(comparison)
        if comparison.decision == "adopted":
            self.best, self._resolved = challenger, resolved
        return comparison.decision == "adopted"

    def _measure_pair(self, comparison: PairedComparison) -> ResolvedConfig | None:
        """Measure one more pair and judge; return what the challenger's `auto` became."""
        tried, kept = self._pair(comparison)
        if tried is not None and tried.failure is not None:
            comparison.decision, comparison.reason = "failed", tried.failure
        elif tried is None or kept is None or kept.failure is not None:
            why = kept.failure if kept is not None else "it was not measured"
            comparison.decision, comparison.reason = "undecided", f"of the setting so far: {why}"
        else:
            self._judge(comparison, tried, kept)
        return tried.record.resolved if tried is not None else None

    def _judge(self, comparison: PairedComparison, tried: Trial, kept: Trial) -> None:
        name = comparison.field
        in_use = [getattr(trial.record.resolved, name, None) for trial in (tried, kept)]
        if in_use[0] is not None and in_use[0] == in_use[1]:
            comparison.decision = "no change"
            comparison.reason = f"{name} is {spelled(in_use[0])} here either way"
            self._note_runs([_rate(tried), _rate(kept)])
            return
        logs = comparison.log_ratios
        logs.append(math.log(_rate(tried) / _rate(kept)))
        ruling, comparison.estimate = judge_pairs(logs, self.scatter)
        if ruling == "faster":
            comparison.decision = "adopted"
        elif ruling != "measure on" and not (
            len(logs) == 1 and (tried.is_doubtful or kept.is_doubtful)
        ):
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
        trials = self.trials.together(
            pair if count % 2 == 0 else pair[::-1],
            "search",
            reserve_s=self._reserve_s(len(self.adopted) + 1),
            stop=lambda trial: (
                trial.failure is not None or (count == 0 and self._is_far_slower(trial))
            ),
        )
        by_config = {trial.config_id: trial for trial in trials}
        tried, kept = (by_config.get(config.config_id) for config in pair)
        if kept is None and count == 0:
            kept = self.trials.last_of(self.best)
        return tried, kept

    def _is_far_slower(self, trial: Trial) -> bool:
        """Against the incumbent's last run, where that is of the same session."""
        kept = self.trials.last_of(self.best)
        if trial.config_id == self.best.config_id or kept is None or trial.is_doubtful:
            return False
        limit = far_slower(pooled_scatter(self.scatter))
        return kept.fresh == trial.fresh and _rate(trial) / _rate(kept) < limit

    def _reserve_s(self, adopted: int) -> float:
        """Seconds of the budget to keep: what confirming so many adopted knobs will take."""
        round_size = 2 + adopted if adopted > 1 else 2  # a single knob put back is the start
        planned_s = PLANNED_ROUNDS * round_size * self.trials.expected_s(self.best)
        return min(planned_s, _MOST_RESERVE * self.trials.budget_s)

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
            for value in values_to_try(knob, self.environment, self.best, self._resolved)
            if (knob.field, value) not in tried
            and value != current(self.start.config, self._started_as, knob.field)
            and isinstance(with_value(self.best, knob.field, value), RunConfig)
        ]
        batches_known = any(comparison.field == BATCH for comparison in self.comparisons)
        if self.largest_batch is not None and not batches_known:
            names.append("batch_size doubled and halved")
        return names


class Confirmation:
    """Best against start; `gains` are the adopted fields and what the search saw of each."""

    def __init__(
        self, trials: Trials, start: Trial, best: RunConfig, gains: Mapping[str, float]
    ) -> None:
        self.not_ablated: list[str] = []
        self.notes: list[str] = []
        self._trials = trials
        self._start = start.config
        self._resolved = start.record.resolved
        self._best = best
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
        expected_s = self._trials.expected_s(self._best)
        while self._put_back:
            round_s = len(self._settings(self._put_back)) * expected_s
            if FEWEST_ROUNDS * round_s <= self._trials.left_s or len(self._put_back) == 1:
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
        return self._give_up(trials[-1].config, trials[-1].failure or "")

    def _give_up(self, config: RunConfig, why: str) -> bool:
        """Go on without a knob whose old value fails beside the others."""
        kept = {self._best.config_id, self._start.config_id}
        for field, variant in self._put_back.items():
            if variant.config_id == config.config_id and variant.config_id not in kept:
                del self._put_back[field]
                self.not_ablated.append(f"{field}: {why}")
                return True
        self.notes.append(f"the confirmation ended early: {why}")
        return False

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
    past, watch = PastTrials(known), watch or TuneWatch()
    trials = Trials(measure, past, watch, limits.budget_s, clock, began_s)
    notes: list[str] = []
    search: Search | None = None
    confirmation: Confirmation | None = None
    interrupted = False
    try:
        start = _measured_start(config, limits, trials, notes)
        largest = None if limits.fixed_batch else limits.max_batch or _ANY_BATCH
        search = Search(trials, start, environment, largest)
        search.run()
        if search.best.config_id != start.config.config_id:
            confirmation = Confirmation(trials, start, search.best, search.gains)
            confirmation.run()
    except KeyboardInterrupt:
        whole = [trial for trial in trials.log if trial.failure is None]
        if not whole:
            raise
        interrupted = True
        search = search or Search(trials, whole[0], environment, None)
    return _result(search, confirmation, notes, interrupted=interrupted)


def _measured_start(config: RunConfig, limits: Limits, trials: Trials, notes: list[str]) -> Trial:
    """Measure the starting configuration, with a batch that fits; a smaller one goes to `notes`."""
    while True:
        try:
            [trial] = trials.together([config], "start")
        except OutOfTimeError:
            raise StartFailedError(trials.log[-1]) from None
        resolved = trial.record.resolved
        if resolved is None:
            raise StartFailedError(trial)
        if trial.failure is None and resolved.batch_size <= (limits.max_batch or _ANY_BATCH):
            return trial
        size = limits.max_batch if trial.failure is None else resolved.batch_size // 2
        out_of_memory = trial.record.outcome == "oom" and not limits.fixed_batch
        smaller = with_value(config, BATCH, size)
        if (trial.failure is not None and not out_of_memory) or isinstance(smaller, str):
            raise StartFailedError(trial)
        why = trial.failure or f"max_batch={limits.max_batch}"
        notes.append(f"starts with batch_size={size}, not {resolved.batch_size}: {why}")
        config = smaller


def _result(
    search: Search, confirmation: Confirmation | None, notes: list[str], *, interrupted: bool
) -> TuneResult:
    """What was found until now."""
    unconfirmed = "nothing that was tried is faster than the start"
    if interrupted:
        unconfirmed = "interrupted before it was"
    elif confirmation is not None:
        unconfirmed = "no time was left to measure it again"
    together = confirmation.together if confirmation else None
    scatter = pooled_scatter(search.scatter)
    return TuneResult(
        start=search.start.config,
        best=search.best,
        trials=tuple(search.trials.log),
        comparisons=tuple(search.comparisons),
        confirmed=together,
        unconfirmed="" if together else unconfirmed,
        ablation=confirmation.ablation if confirmation else (),
        not_ablated=tuple(confirmation.not_ablated) if confirmation else (),
        untried=tuple(search.untried),
        left_out=tuple(f"{value}: {why}" for value, why in search.left_out.items()),
        notes=(*notes, *(confirmation.notes if confirmation else ())),
        scatter=scatter.deviation if scatter else None,
        budget_s=search.trials.budget_s,
        used_s=search.trials.used_s,
        interrupted=interrupted,
    )
