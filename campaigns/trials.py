"""What a tuning measures within a budget of time, now or in earlier sessions, and what it finds."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from bench.config import RunConfig, Sample, common_sample, rate_unit
from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.measurement import launch_measurement
from bench.machine.repository import has_changed
from bench.records import RunRecord
from bench.records.folders import RecordFolder
from bench.records.journal import Clock, Event, OnEvent
from bench.statistics.ratios import RatioEstimate
from campaigns.plan import Deliver

Stage = Literal["start", "search", "confirmation"]
Decision = Literal["adopted", "not faster", "no change", "undecided", "failed", "cut short"]
#: Runs of one session start at most this long after the one before has ended.
_NEIGHBOURS_S = 60.0
#: Of the whole budget: one trial that takes longer (a compilation, mostly) is given up.
_MAX_TRIAL_SHARE = 0.25


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
        whole = self.record.measurement if self.record.outcome == "ok" else None
        return None if whole is None else whole.pace_samples_per_s

    @property
    def rate(self) -> float:
        """The pace of a whole trial."""
        assert self.samples_per_s is not None  # only whole trials are compared  # noqa: S101
        return self.samples_per_s

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


class TuneWatch:
    """Follows a tuning; this base does nothing."""

    def starting(self, config: RunConfig) -> None:
        """A trial is about to be measured."""

    def ended(self, trial: Trial) -> None:
        """A trial has ended, or was taken from an earlier session."""

    def ruled(self, comparison: PairedComparison) -> None:
        """A value of a knob was compared with the fastest setting so far."""


#: Measures a configuration in at most so many seconds, and gives a record whatever happens. A
#: measurement that was ended because it took longer has the outcome `interrupted`; one that the
#: user ended raises KeyboardInterrupt.
Measure = Callable[[RunConfig, float], RunRecord]


class OutOfTimeError(Exception):
    """The next trial would not end within the time that is left for it."""


class StartFailedError(Exception):
    """Not even the starting configuration could be measured; `trial` says why."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial.failure)
        self.trial = trial


class Trials:
    """Every trial of a tuning, in order: of `known` records, else by `measure`.

    `known` are of the campaign on this environment. A tuning repeats the decisions of the sessions
    before it, so it asks for their trials in the order in which they were measured. Those of a
    user's own model count only while its source is the same. Trials may take `budget_s` from
    `began_s` of `clock` on, by default from now.
    """

    def __init__(
        self,
        measure: Measure,
        known: Iterable[RunRecord],
        watch: TuneWatch,
        budget_s: float,
        clock: Clock = time.monotonic,
        began_s: float | None = None,
    ) -> None:
        self.log: list[Trial] = []
        self.budget_s = budget_s
        self._measure, self._watch, self._clock = measure, watch, clock
        self._began_s = clock() if began_s is None else began_s
        ordered = sorted(known, key=lambda record: record.record_id)
        self._tape = [
            record
            for record in ordered
            if record.outcome != "interrupted" and not _is_of_old(record)
        ]
        self._repeats: Counter[str] = Counter()
        for record in ordered:
            before = self._repeats[record.config_id]
            self._repeats[record.config_id] = max(before, record.config.repeat)

    @property
    def used_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began_s

    @property
    def left_s(self) -> float:
        """Seconds still to come; negative once the budget is overrun."""
        return self.budget_s - self.used_s

    def together(
        self,
        configs: Sequence[RunConfig],
        stage: Stage,
        *,
        reserve_s: float = 0.0,
        stop: Callable[[Trial], bool] = lambda trial: False,
    ) -> list[Trial]:
        """Return runs of `configs` that follow each other; fewer where `stop` says so.

        Raises `OutOfTimeError` instead of starting one that would not end before `reserve_s`.
        """
        if known := self._known(configs, stage, stop):
            return [self._noted(record, stage) for record in known]
        self._ask_for(sum(map(self.expected_s, configs)), reserve_s)
        trials: list[Trial] = []
        for config in configs:
            self._ask_for(self.expected_s(config), reserve_s)
            trials.append(self._measured(config, stage, reserve_s))
            if stop(trials[-1]):
                break
        return trials

    def expected_s(self, config: RunConfig) -> float:
        """Return how long a trial will take, from the last like it; 0 before the first.

        A larger batch takes in proportion longer: the window holds a least number of iterations.
        """
        if (same := self.last_of(config)) is not None:
            return same.took_s
        good = [trial for trial in self.log if trial.samples_per_s is not None]
        if not good:
            return 0.0
        # Compiling takes its time once for each trial.
        alike = [trial for trial in good if trial.config.compile == config.compile]
        last = (alike or good)[-1]
        return last.took_s * max(1.0, _batch(config, last) / _batch(last.config, last))

    def last_of(self, config: RunConfig) -> Trial | None:
        """Return the last whole trial of `config`."""
        config_id = config.config_id
        whole = (trial for trial in reversed(self.log) if trial.samples_per_s is not None)
        return next((trial for trial in whole if trial.config_id == config_id), None)

    def _ask_for(self, seconds: float, reserve_s: float) -> None:
        # the first one is measured even if getting ready took all the time
        if self.log and seconds > self.left_s - reserve_s:
            raise OutOfTimeError

    def _known(
        self, configs: Sequence[RunConfig], stage: Stage, stop: Callable[[Trial], bool]
    ) -> list[RunRecord]:
        """The next records of `configs` that were measured one after the other, none without.

        A run of the first of them alone suffices where `stop` says so.
        """
        wanted = [config.config_id for config in configs]
        for first, record in enumerate(self._tape):
            if record.config_id != wanted[0]:
                continue
            window = self._tape[first : first + len(wanted)]
            if [past.config_id for past in window] != wanted or not all(
                map(_neighbours, window, window[1:])
            ):
                window = [record]
                if not stop(self._trial(record, stage)):
                    continue
            del self._tape[: first + len(window)]
            return window
        return []

    def _measured(self, config: RunConfig, stage: Stage, reserve_s: float) -> Trial:
        begin_s = self._clock()
        self._repeats[config.config_id] += 1
        numbered = config.model_copy(update={"repeat": self._repeats[config.config_id]})
        self._watch.starting(numbered)
        limit_s = self.budget_s
        if self.log:  # no overrun is longer than the trial was expected to be
            expected_s = self.expected_s(config)
            left_s = self.left_s - reserve_s + expected_s
            limit_s = min(left_s, max(_MAX_TRIAL_SHARE * limit_s, 3 * expected_s))
        record = self._measure(numbered, limit_s)
        return self._noted(record, stage, self._clock() - begin_s)

    def _trial(self, record: RunRecord, stage: Stage, took_s: float | None = None) -> Trial:
        """The next trial, of an earlier session where it is not said how long it took."""
        fresh = took_s is not None
        took_s = _real_s(record) if took_s is None else took_s
        return Trial(len(self.log) + 1, stage, record, took_s, fresh)

    def _noted(self, record: RunRecord, stage: Stage, took_s: float | None = None) -> Trial:
        self.log.append(self._trial(record, stage, took_s))
        self._watch.ended(self.log[-1])
        return self.log[-1]


def _batch(config: RunConfig, like: Trial) -> int:
    """Images of a batch; `auto` is what it was in `like`."""
    if config.batch_size != "auto":
        return config.batch_size
    return like.record.resolved.batch_size if like.record.resolved else 1


def _is_of_old(record: RunRecord) -> bool:
    environment = record.environment
    return environment is not None and has_changed(record.config.arch, environment.code)


def _real_s(record: RunRecord) -> float:
    return record.process.real_s if record.process else 0.0


def _neighbours(before: RunRecord, after: RunRecord) -> bool:
    pause = after.created - before.created - timedelta(seconds=_real_s(before))
    return pause.total_seconds() < _NEIGHBOURS_S


def measure_here(
    records: Path, deliver: Deliver, on_event: OnEvent, config: RunConfig, limit_s: float
) -> RunRecord:
    """Measure on this machine, in a fresh worker, and return the record; it is kept in `records`.

    `deliver` brings it wherever else it is kept. `interrupted` after `limit_s` seconds. Raises
    `KeyboardInterrupt`, once the record is safe, where the user ended the worker.
    """
    with exclusive(
        device_names(config.backend),
        lambda holder: on_event(Event("waiting", 0.0, {"holder": holder})),
    ):
        folder = RecordFolder.create(records)
        deadline_s = time.perf_counter() + limit_s
        record = launch_measurement(config, folder, on_event, deadline_s=deadline_s)
    deliver(folder, record)
    by_another = record.outcome == "interrupted" and time.perf_counter() < deadline_s
    if folder.is_interrupted or by_another:
        raise KeyboardInterrupt
    return record
