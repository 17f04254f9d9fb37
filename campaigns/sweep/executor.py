"""What measures a sweep: its order, what becomes of its runs, who watches, and executors."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal, Protocol

from bench.config import RunConfig
from bench.errors import UserError
from bench.records import Environment, Outcome, ProfileRecord, RunRecord, ToolName
from bench.records.folders import MeasuredRecord, RecordFolder
from bench.records.journal import Event
from campaigns.sweep.plan import PastRun, PastRuns, Plan

#: Brings a finished record to where it is kept besides the disk.
Deliver = Callable[[RecordFolder, MeasuredRecord], None]


@dataclass(frozen=True)
class Turn:
    """What became of one planned run; `problem` is why its record could not be written, if so."""

    config: RunConfig
    state: Literal["measured", "measured before", "skipped", "left over"]
    outcome: Outcome | None  # None for what was skipped or left over
    reason: str | None  # of a skip, or why the outcome is not ok
    record: RunRecord | None  # of what was measured now
    problem: str | None = None

    @classmethod
    def of(cls, record: RunRecord, problem: str | None = None) -> Turn:
        """Return the turn of a run that was measured now."""
        return cls(record.config, "measured", record.outcome, record.reason, record, problem)


class SweepWatch:
    """Follows a sweep; this base does nothing."""

    def starting(self, config: RunConfig, what: str = "") -> None:
        """A run is about to start, or `what` of it."""

    def on_event(self, event: Event) -> None:
        """The running worker reached something."""

    def waiting(self, holder: str) -> None:
        """This process, in words, has the device."""

    def profiled(self, record: ProfileRecord) -> None:
        """A profile has ended."""


@dataclass(frozen=True)
class SweepOrder:
    """A plan, where its records go and how it is measured.

    `elsewhere` are runs of the campaign that only the server knows. `profile` are the tools of
    the profile of each configuration, `auto` for those that the device has; none if it is empty.
    At `deadline_s`, a reading of `time.perf_counter`, a sweep on this machine ends.
    """

    plan: Plan
    campaign: str
    records: Path
    retry_failed: bool
    settle_s: float
    elsewhere: tuple[PastRun, ...] = ()
    profile: tuple[ToolName | Literal["auto"], ...] = ()
    deadline_s: float = math.inf


def turn_before(config: RunConfig, past: PastRuns, order: SweepOrder) -> Turn | None:
    """Return the turn of a run that was measured before, or None where it has to be measured."""
    before = past.of(config)
    if before is None or before.outcome == "interrupted":
        return None
    if order.retry_failed and before.outcome != "ok":
        return None
    return Turn(config, "measured before", before.outcome, before.reason, None)


#: Under which a distribution names a `RemoteExecutor`.
ENTRY_POINTS = "mlproject.executors"


class Executor(Protocol):
    """Measures the runs of a plan somewhere.

    `environments` are those of its devices, empty where they differ; `backends` can be planned for.
    """

    place: str  # in messages
    environments: tuple[Environment, ...]
    backends: set[str]

    def sweep(self, order: SweepOrder, deliver: Deliver, watch: SweepWatch) -> Generator[Turn]:
        """Measure what is not measured yet; yield what became of each run, as it ends.

        The record is on disk before `deliver` sees it.
        """


class RemoteExecutor(Executor, Protocol):
    """One that measures on other machines, at an address; `note` receives a line per problem."""

    def __init__(self, address: str, *, node_wait_s: float, note: Callable[[str], None]) -> None:
        """A run waits `node_wait_s` seconds for a machine that has its device."""

    def connected(self, campaign: str) -> AbstractContextManager[Executor]:
        """Be the one who sweeps `campaign` there. Raises `UserError` where nobody answers."""


def remote_executor(name: str) -> type[RemoteExecutor]:
    """Return the executor that an installed distribution names so. Raises `UserError`."""
    try:
        [entry] = entry_points(group=ENTRY_POINTS, name=name)
        executor: type[RemoteExecutor] = entry.load()
    except (ValueError, ImportError) as error:
        why = error if isinstance(error, ImportError) else "its plug-in is not installed"
        raise UserError(
            f"executor={name!r}: {why}; pip install 'mlproject[{name}]', or in a clone make setup"
        ) from None
    return executor
