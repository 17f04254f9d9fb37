"""One rank of a measurement or a profile on several devices; rank 0 gives the account of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from threading import Event
from types import FrameType

from bench.config import RunConfig
from bench.records import DistributedFigures, Outcome, RankAccount, RankFigures
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.team import DdpTeam
from bench.worker.measurement import WorkerMeasurement, write_account
from bench.worker.outcome import attempt
from bench.worker.profile import StepProfile, asked_config
from bench.worker.step_setup import ReadyStep

#: Steps with communication, and as many without: a tenth of the window's, so that slow steps do
#: not double the time of a run, but not more than this.
_MAX_PROBES = 5
#: What gloo, NCCL and torch's store say when the others are gone.
_LOST_PHRASES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "failed to connect",
    "Timed out waiting",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
)


def measure_rank(folder: RecordFolder, journal: JournalWriter) -> None:
    """Measure this rank's part, write `rank-N.json`, and as rank 0 `worker.json`."""
    config = RunConfig.model_validate_json(folder.config.read_text(encoding="utf-8"))
    team = DdpTeam(config, os.environ)
    measurement = RankMeasurement(config, journal, team)
    _take_part(folder, journal, team, measurement.run, partial(write_account, folder, measurement))


def profile_rank(folder: RecordFolder, journal: JournalWriter) -> None:
    """Profile this rank's step, write `rank-N.json`, and as rank 0 `worker.json`."""
    team = DdpTeam(asked_config(folder), os.environ)
    step = StepProfile(folder, journal, team)
    _take_part(folder, journal, team, step.run, step.write_account)


def _take_part(
    folder: RecordFolder,
    journal: JournalWriter,
    team: DdpTeam,
    run: Callable[[], None],
    write_whole: Callable[[Outcome, str | None], None],
) -> None:
    """Do this rank's part with `run`, and leave its account; `write_whole` gives rank 0's."""
    asked = Event()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        asked.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    outcome, reason = attempt(run)
    # The elastic launcher asks the ranks to end as soon as one has failed: the account comes first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if asked.is_set() and outcome != "ok":  # another rank may have ended first
        outcome, reason = "interrupted", "interrupted from outside"
    ended_unix_s = time.time()
    journal.note("ended", outcome=outcome)
    account = RankAccount.of(
        "the outcome is ok",
        rank=team.shard.rank,
        outcome=outcome,
        reason=reason,
        cause="lost" if any(phrase in (reason or "") for phrase in _LOST_PHRASES) else "own",
        ended_unix_s=ended_unix_s,
    )
    folder.write(folder.rank(account.rank), account)
    if outcome != "ok":
        _report_failure(team, folder, account)
    if account.rank == 0:
        write_whole(outcome, reason)
    _end(team, outcome)


class RankMeasurement(WorkerMeasurement):
    """One rank's part of the measurement."""

    def __init__(self, config: RunConfig, journal: JournalWriter, team: DdpTeam) -> None:
        super().__init__(config, journal, team)
        self._team = team

    def compare_ranks(self, ready: ReadyStep) -> None:
        """Probe what communication costs and collect every rank's figures."""
        probes = max(1, min(_MAX_PROBES, len(ready.window.data_wait_s) // 10))
        synced_step_s = self._probe(ready, probes, local=False)
        local_step_s = self._probe(ready, probes, local=True)
        self.ranks = DistributedFigures(
            communication=self._team.communication,
            ranks=tuple(self._team.gather(self._figures(ready))),
            synced_step_s=synced_step_s,
            local_step_s=local_step_s,
        )

    def _probe(self, ready: ReadyStep, steps: int, *, local: bool) -> tuple[float, ...]:
        """Seconds of each of some steps on the slowest rank, begun together.

        One more goes before them: the first local one may compile again, and still sends the
        buffers that the step before it has left behind.
        """
        times_s = []
        with self._team.no_gradient_sync() if local else nullcontext():
            for _ in range(1 + steps):
                self._team.barrier()
                begin = time.perf_counter()
                ready.step()
                ready.device.synchronize()
                times_s.append(time.perf_counter() - begin)
        return tuple(map(max, zip(*self._team.gather(times_s[1:]), strict=True)))

    def _figures(self, ready: ReadyStep) -> RankFigures:
        window, info = self.measurement(), ready.device.info()
        assert window is not None  # it has just been measured  # noqa: S101
        return RankFigures.of(
            "",
            {**window.missing, "device_uuid": info.missing.get("uuid", "")},
            rank=self._team.shard.rank,
            node=self._team.node,
            device=info.name,
            device_uuid=info.uuid,
            iteration_times_s=window.iteration_times_s,
            data_wait_s=window.data_wait_s,
            peak_memory_allocated_bytes=window.peak_memory_allocated_bytes,
            peak_memory_reserved_bytes=window.peak_memory_reserved_bytes,
        )


def _report_failure(team: DdpTeam, folder: RecordFolder, account: RankAccount) -> None:
    """Send the account to rank 0, on whatever machine; as rank 0 keep those of the others."""
    team.report_failure(account.model_dump_json())
    if account.rank == 0:
        for rank, reported in team.reported_failures().items():
            if not folder.rank(rank).exists():
                folder.write(folder.rank(rank), RankAccount.model_validate_json(reported))


def _end(team: DdpTeam, outcome: Outcome) -> None:
    """End together with the others, or at once without them.

    A rank that fails must not wait for the others in a destructor: its exit code is what makes the
    elastic launcher end them.
    """
    if outcome == "ok":
        team.close()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
