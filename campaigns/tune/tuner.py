"""A whole tuning: the start, the search, and the fresh runs that its result is quoted from."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bench.config import RunConfig
from bench.records import Environment, RunRecord
from bench.records.journal import Clock
from campaigns.tune.coordinate_descent import Confirmation, Search, reserve_s
from campaigns.tune.knobs import BATCH, with_value
from campaigns.tune.result import Trial, TuneResult, TuneWatch
from campaigns.tune.trials import Budget, Measure, OutOfTimeError, PastTrials, Trials

#: No device holds as many images at a time.
_ANY_BATCH = 2**20


class StartFailedError(Exception):
    """Not even the starting configuration could be measured; `trial` says why."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial.failure)
        self.trial = trial


@dataclass(frozen=True)
class Limits:
    """What a tuning may spend and change."""

    budget_s: float
    fixed_batch: bool = False
    max_batch: int | None = None


@dataclass
class _Progress:
    """What is known so far, for the result of a tuning that is interrupted."""

    start: Trial | None = None
    search: Search | None = None
    confirmation: Confirmation | None = None
    notes: list[str] = field(default_factory=list)


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
    budget = Budget(limits.budget_s, clock, began_s)
    trials = Trials(measure, PastTrials(known), budget, watch or TuneWatch())
    so_far = _Progress()
    interrupted = False
    try:
        _tune(config, environment, limits, trials, so_far)
    except KeyboardInterrupt:
        whole = [trial for trial in trials.log if trial.failure is None]
        if not whole:
            raise
        so_far.start = so_far.start or whole[0]
        interrupted = True
    return _result(limits, trials, so_far, interrupted=interrupted)


def _tune(
    config: RunConfig, environment: Environment, limits: Limits, trials: Trials, so_far: _Progress
) -> None:
    start = so_far.start = _start(config, limits, trials, so_far.notes)
    search = so_far.search = Search(
        trials,
        start,
        environment,
        lambda adopted: reserve_s(trials, search.best, adopted),
        largest_batch=None if limits.fixed_batch else limits.max_batch or _ANY_BATCH,
    )
    search.run()
    if search.best.config_id != start.config.config_id:
        so_far.confirmation = Confirmation(trials, start, search.best, search.gains)
        so_far.confirmation.run()


def _start(config: RunConfig, limits: Limits, trials: Trials, notes: list[str]) -> Trial:
    """Measure the starting configuration, with a batch that fits."""
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


def _result(limits: Limits, trials: Trials, so_far: _Progress, *, interrupted: bool) -> TuneResult:
    start, search, confirmation = so_far.start, so_far.search, so_far.confirmation
    assert start is not None  # else it was raised  # noqa: S101
    together = confirmation.together if confirmation else None
    not_ablated = confirmation.not_ablated if confirmation else {}
    return TuneResult(
        start=start.config,
        best=search.best if search else start.config,
        trials=tuple(trials.log),
        comparisons=tuple(search.comparisons) if search else (),
        confirmed=together,
        unconfirmed="" if together else _why_unconfirmed(confirmation, interrupted=interrupted),
        ablation=confirmation.ablation if confirmation else (),
        not_ablated=_with_reasons(not_ablated),
        untried=tuple(search.untried) if search else (),
        left_out=_with_reasons(search.left_out) if search else (),
        notes=(*so_far.notes, *(confirmation.notes if confirmation else ())),
        scatter=search.noise.deviation if search else None,
        budget_s=limits.budget_s,
        used_s=trials.budget.used_s,
        interrupted=interrupted,
    )


def _with_reasons(reasons: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}: {why}" for name, why in reasons.items())


def _why_unconfirmed(confirmation: Confirmation | None, *, interrupted: bool) -> str:
    if interrupted:
        return "interrupted before it was"
    if confirmation is None:
        return "nothing that was tried is faster than the start"
    return "no time was left to measure it again"
