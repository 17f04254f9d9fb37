"""A plan of runs, what was measured of it before, and who measures it, here or elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal, Protocol

from bench.config import RunConfig, missing_package
from bench.errors import UserError
from bench.launcher.profile import recover
from bench.machine.repository import has_changed
from bench.records import Environment, Outcome, ProfileRecord, RunRecord, ToolName
from bench.records.environment import environment_id
from bench.records.folders import MeasuredRecord, RecordFolder, readable_records, record_folders
from bench.records.journal import Event
from campaigns.matrix import Block, Matrix


@dataclass(frozen=True)
class PlannedBlock:
    """What a block needs, and how many of its `runs` this machine measures."""

    name: str
    needs: tuple[str, ...]  # backends; `auto` is any
    packages: tuple[str, ...]  # those that its models need and that are not installed
    runs: int
    runs_here: int

    def __str__(self) -> str:
        needs = " and ".join([" or ".join(self.needs), *self.packages])
        return f"{self.name}: needs {needs}; {self.runs_here} of {self.runs} runs are here"


@dataclass(frozen=True)
class Plan:
    """`runs` of this machine in order; `elsewhere` holds those of the backends that it lacks."""

    runs: tuple[RunConfig, ...]
    elsewhere: Mapping[str, tuple[RunConfig, ...]]
    blocks: tuple[PlannedBlock, ...]

    @property
    def left_out(self) -> tuple[PlannedBlock, ...]:
        """The blocks of which this machine measures nothing, or, without a package, not all."""
        return tuple(block for block in self.blocks if not block.runs_here or block.packages)


def plan_runs(
    matrix: Matrix,
    *,
    campaign: str,
    env: str = "auto",
    backends: Collection[str],
    only: str | None = None,
    limit: int | None = None,
    shard: tuple[int, int] = (1, 1),
) -> Plan:
    """Return the runs of `matrix` on a machine that has `backends`, and those that need others.

    Every configuration once, then every configuration a second time, and so on, each round
    shuffled by the matrix's seed: what drifts while a sweep runs (heat, a neighbour on the host)
    then falls on all configurations alike. `only` keeps the configurations of that backend;
    `limit` keeps the first so many of the matrix, with all their repeats, on each machine; `shard`
    (2, 4) of these the second, the sixth and so on. Models whose package is not installed here are
    left out.
    """
    asked = _repeats(matrix, only)
    here = {"auto", *backends}

    def runs_on(on: Collection[str]) -> tuple[RunConfig, ...]:
        first = islice((item for item in asked.items() if item[0].backend in on), limit)
        part = islice(first, shard[0] - 1, None, shard[1])
        return tuple(_rounds(dict(part), matrix.seed, campaign=campaign, env=env))

    absent = dict.fromkeys(config.backend for config in asked if config.backend not in here)
    blocks = (_planned(block, only, here) for block in matrix.blocks)
    return Plan(
        runs_on(here),
        {backend: runs_on({backend}) for backend in absent},
        tuple(block for block in blocks if block.needs),
    )


def _repeats(matrix: Matrix, only: str | None) -> dict[RunConfig, int]:
    """How often what can be measured here is measured; where blocks overlap, the most counts."""
    repeats: dict[RunConfig, int] = {}
    for block in matrix.blocks:
        for config in block.configs:
            if only in (None, config.backend) and not missing_package(config.arch):
                repeats[config] = max(block.repeats, repeats.get(config, 0))
    return repeats


def _rounds(repeats: Mapping[RunConfig, int], seed: int, **filing: str) -> Iterable[RunConfig]:
    for repeat in range(1, max(repeats.values(), default=0) + 1):
        turn = [config for config, times in repeats.items() if repeat <= times]
        Random(f"{seed}:{repeat}").shuffle(turn)  # noqa: S311 - an order, not a secret
        for config in turn:
            yield config.model_copy(update={"repeat": repeat, **filing})


def _planned(block: Block, only: str | None, here: Collection[str]) -> PlannedBlock:
    asked = [config for config in block.configs if only in (None, config.backend)]
    absent = [missing_package(config.arch) for config in asked]
    fitting = sum(
        config.backend in here and not package
        for config, package in zip(asked, absent, strict=True)
    )
    return PlannedBlock(
        block.name,
        tuple(sorted({config.backend for config in asked})),
        tuple(sorted(set(filter(None, absent)))),
        runs=block.repeats * len(asked),
        runs_here=block.repeats * fitting,
    )


def campaign_records(
    records: Path, campaign: str, environment: Environment, *, newest_first: bool = False
) -> Iterator[RunRecord | ProfileRecord]:
    """Yield the measurements and profiles of a campaign on one environment, below `records`.

    Those that ended before their device was known may be of it.
    """
    here = environment_id(environment)
    for _, record in readable_records(records, newest_first=newest_first):
        if (
            isinstance(record, RunRecord | ProfileRecord)
            and record.config.campaign == campaign
            and (record.environment is None or environment_id(record.environment) == here)
        ):
            yield record


@dataclass(frozen=True)
class PastRun:
    """How one run of a campaign ended."""

    config: RunConfig
    environment_id: str | None  # None where it ended before a device was opened
    outcome: Outcome
    reason: str | None
    record_id: str
    code: str | None = None  # the digest of a user's own model; None where it is not known

    @classmethod
    def of(cls, record: RunRecord) -> PastRun:
        """Return what a sweep needs to know of `record`."""
        environment = record.environment
        return cls(
            record.config,
            environment_id(environment) if environment else None,
            record.outcome,
            record.reason,
            record.record_id,
            environment.code if environment else None,
        )


@dataclass
class PastRuns:
    """The runs of a campaign on one environment, or on any where `environment` is None.

    Of a configuration and repeat one that went well counts, else the last. A run of a user's own
    model counts only while its source is the same. `elsewhere` are runs that only the tracking
    server knows, their records folder being another.
    """

    records: Path
    campaign: str
    environment: str | None
    elsewhere: Iterable[PastRun] = ()
    retry_failed: bool = False  # what failed before the first `refresh` is measured again

    def __post_init__(self) -> None:
        self._retried: frozenset[str] | None = None
        self._read: set[str] = set()
        self._last: dict[tuple[str, int], PastRun] = {}
        self._has_changed = cache(has_changed)
        for past in self.elsewhere:
            self.add(past)

    def refresh(self) -> None:
        """Read the records that came since the last call; each is read once."""
        for folder in record_folders(self.records, missing_ok=True):
            if folder.record_id in self._read or not folder.record.is_file():
                continue
            self._read.add(folder.record_id)
            record = folder.readable_record()
            if isinstance(record, RunRecord) and record.config.campaign == self.campaign:
                self.add(PastRun.of(record))
        if self._retried is None:
            before = self._last.values() if self.retry_failed else ()
            self._retried = frozenset(past.record_id for past in before)

    def add(self, past: PastRun) -> None:
        """Note one run; one of another environment, or of changed source, is left out."""
        if self.environment is not None and past.environment_id not in (self.environment, None):
            return
        if self._has_changed(past.config.arch, past.code):
            return
        key = (past.config.config_id, past.config.repeat)
        # A record that arrives late, from a machine that was lost, is older than its replacement.
        self._last[key] = max(self._last.get(key, past), past, key=_rank)

    def of(self, config: RunConfig) -> PastRun | None:
        """Return the run of this configuration and repeat that counts."""
        return self._last.get((config.config_id, config.repeat))

    def too_large(self, config: RunConfig) -> PastRun | None:
        """Return a run that ran out of memory with a smaller batch of the same configuration.

        One that is to be measured again does not count, nor does one whose batch, or a larger one,
        has gone well in another run.
        """
        if not any(past.outcome == "oom" for past in self._last.values()):
            return None
        family = _family(config)
        alike = [
            past
            for past in self._last.values()
            if past.environment_id is not None and _family(past.config) == family
        ]
        fits = max((_batch(past.config) for past in alike if past.outcome == "ok"), default=0)
        return next(
            (
                past
                for past in alike
                if past.outcome == "oom"
                and past.record_id not in (self._retried or ())
                and fits < _batch(past.config) < _batch(config)
            ),
            None,
        )


def take_over(records: Path, waiting: Callable[[str], None]) -> list[RecordFolder]:
    """Complete the records of a killed sweep, and return the folders that this changed.

    A worker whose launcher was killed measures on; it is waited for, since it keeps the device
    busy and its measurement is as good as any. `waiting` receives its identifier.
    """
    changed = []
    for folder in record_folders(records, missing_ok=True):
        if folder.record.is_file():
            continue
        if folder.orphaned():
            waiting(folder.record_id)
            while folder.orphaned():
                time.sleep(0.2)
        if not folder.in_use() and recover(folder) is not None:
            changed.append(folder)
    return changed


def _rank(past: PastRun) -> tuple[bool, str]:
    return past.outcome == "ok", past.record_id


@cache
def _family(config: RunConfig) -> str:
    return config.model_copy(update={"batch_size": 1, "seed": 0}).config_id


def _batch(config: RunConfig) -> int:
    """Of `auto` 0: its batch is not known before it runs, so neither is which is larger."""
    return 0 if config.batch_size == "auto" else config.batch_size


# Who measures

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
