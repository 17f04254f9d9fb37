"""Where a sweep's runs are measured: on this machine, or on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bench.config import RunConfig
from bench.records import Environment, Outcome, ProfileRecord, RunRecord, ToolName
from bench.records.folders import RecordFolder
from bench.records.journal import Event
from campaigns.sweep.past import PastRun, PastRuns
from campaigns.sweep.plan import Plan

#: Brings a finished record to where it is kept besides the disk.
Deliver = Callable[[RecordFolder, RunRecord | ProfileRecord], None]


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
    """Follows a sweep; this base does nothing."""

    def starting(self, number: int, config: RunConfig) -> None:
        """The run of this number (from 0) is about to start."""

    def on_event(self, event: Event) -> None:
        """The running worker reached something."""

    def waiting(self, holder: str) -> None:
        """This process, in words, has the device."""

    def ended(self, turn: Turn) -> None:
        """A planned run has ended."""

    def profiling(self, config: RunConfig) -> None:
        """The step of a measured configuration is about to be profiled."""

    def profiled(self, record: ProfileRecord) -> None:
        """A profile has ended."""


@dataclass(frozen=True)
class SweepOrder:
    """A plan, where its records go and how it is measured.

    `elsewhere` are runs of the campaign that only the server knows. `profile` are the tools of
    the profile of each configuration, `auto` for those that the device has; none if it is empty.
    """

    plan: Plan
    campaign: str
    records: Path
    retry_failed: bool
    settle_s: float
    elsewhere: tuple[PastRun, ...] = ()
    profile: tuple[ToolName | Literal["auto"], ...] = ()


class Executor(Protocol):
    """Measures those runs of a plan that are not measured yet."""

    place: str  # in messages
    backends: Collection[str]  # what can be planned for
    #: The estimate of a sweep's time is for these; none where they differ.
    environments: tuple[Environment, ...]

    def sweep(self, order: SweepOrder, deliver: Deliver, watch: SweepWatch) -> Generator[Turn]:
        """Yield what became of each run, once its record is on disk and delivered."""


def turn_before(config: RunConfig, past: PastRuns, order: SweepOrder) -> Turn | None:
    """Return the turn of a run that was measured before, or None where it has to be measured."""
    known = past.of(config)
    if known is None or known.outcome == "interrupted":
        return None
    if known.outcome != "ok" and order.retry_failed:
        return None
    return Turn(config, "measured before", known.outcome, known.reason, None)


def turn_too_large(config: RunConfig, past: PastRuns, device: str | None = None) -> Turn | None:
    """Return the turn of a run whose smaller batches ran out of memory (on `device`), or None."""
    smaller = past.too_large(config, device)
    if smaller is None:
        return None
    why = f"batch {smaller.config.batch_size} of it ran out of memory ({smaller.record_id})"
    return Turn(config, "skipped", None, why, None)
