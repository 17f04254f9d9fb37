"""Measures a plan on this machine, one fresh worker after the other, and takes it up again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.config import RunConfig
from bench.launcher.measurement import launch_measurement
from bench.machine.identity import environment_id
from bench.records import Environment, Outcome, RunRecord
from bench.records.folders import RecordFolder
from bench.records.journal import Event
from campaigns.sweep.locks import exclusive
from campaigns.sweep.machine import environment_of
from campaigns.sweep.past import PastRuns
from campaigns.sweep.past_run import PastRun
from campaigns.sweep.plan import Plan

#: Brings a finished record to where it is kept besides the disk.
Deliver = Callable[[RecordFolder, RunRecord], None]


@dataclass(frozen=True)
class Turn:
    """What became of one planned run."""

    config: RunConfig
    state: Literal["measured", "measured before", "skipped", "left over"]
    outcome: Outcome | None  # None for what was skipped or left over
    reason: str | None  # of a skip, or why the outcome is not ok
    record: RunRecord | None  # of what was measured now

    @classmethod
    def of(cls, record: RunRecord) -> Turn:
        """Return the turn of a run that was measured now."""
        return cls(record.config, "measured", record.outcome, record.reason, record)


class SweepWatch:
    """Whoever looks on; the base looks away."""

    def starting(self, number: int, config: RunConfig) -> None:
        """The run of this number (from 0) is about to start."""

    def on_event(self, event: Event) -> None:
        """The running worker reached something."""

    def waiting(self, device: str) -> None:
        """Another benchmark has the device."""

    def ended(self, turn: Turn) -> None:
        """A planned run is through."""


class Sweep:
    """One campaign's plan on one machine."""

    def __init__(
        self,
        plan: Plan,
        campaign: str,
        environments: tuple[Environment, ...],
        records: Path,
        *,
        retry_failed: bool = False,
        elsewhere: Iterable[PastRun] = (),
    ) -> None:
        self._plan = plan
        self._environments = environments
        self._records = records
        self._retry_failed = retry_failed
        runs = list(elsewhere)
        self._past = {
            name: PastRuns(records, campaign, name, runs)
            for name in map(environment_id, environments)
        }

    def run(
        self, deliver: Deliver, watch: SweepWatch, settle: Callable[[Environment], None]
    ) -> Iterator[Turn]:
        """Measure what is not measured yet, in order; yield what became of each run.

        The record is on disk before `deliver` sees it. An interrupted run is the last.
        """
        for number, config in enumerate(self._plan.runs):
            environment = environment_of(config, self._environments)
            turn = self._earlier(config, environment)
            if turn is None:
                turn = self._measure(number, config, environment, deliver, watch, settle)
            watch.ended(turn)
            yield turn
            if turn.record is not None and turn.record.outcome == "interrupted":
                return

    def _measure(
        self,
        number: int,
        config: RunConfig,
        environment: Environment,
        deliver: Deliver,
        watch: SweepWatch,
        settle: Callable[[Environment], None],
    ) -> Turn:
        with exclusive(environment.device, lambda: watch.waiting(environment.device.name)):
            # Another sweep of this campaign may have measured it while we waited.
            if (turn := self._earlier(config, environment)) is not None:
                return turn
            settle(environment)
            watch.starting(number, config)
            folder = RecordFolder.create(self._records)
            record = launch_measurement(config, folder, watch.on_event)
            deliver(folder, record)
        return Turn.of(record)

    def _earlier(self, config: RunConfig, environment: Environment) -> Turn | None:
        """What an earlier run says of this one, or None if it has to be measured."""
        past = self._past[environment_id(environment)]
        past.refresh()
        return turn_before(config, past, self._retry_failed) or turn_too_large(config, past)


def turn_before(config: RunConfig, past: PastRuns, retry_failed: bool) -> Turn | None:
    """Return the turn of a run that was measured before, or None where it has to be measured."""
    known = past.of(config)
    if known is None or known.outcome == "interrupted":
        return None
    if known.outcome != "ok" and retry_failed:
        return None
    return Turn(config, "measured before", known.outcome, known.reason, None)


def turn_too_large(config: RunConfig, past: PastRuns, device: str | None = None) -> Turn | None:
    """Return the turn of a run whose smaller batches ran out of memory (on `device`), or None."""
    smaller = past.too_large(config, device)
    if smaller is None:
        return None
    why = f"batch {smaller.config.batch_size} of it ran out of memory ({smaller.record_id})"
    return Turn(config, "skipped", None, why, None)
