"""A job on several devices: the elastic launcher of a machine's ranks, and one rank.

Rank 0 gives the account of all.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING

from bench.config import RunConfig
from bench.config.run_config import meeting_point
from bench.machine.limits import describe_exit, oom_kills
from bench.records import Outcome
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.records.measurement import RankAccount
from bench.training.team import DdpTeam
from bench.worker.attempt import Attempt, RoofsAttempt, outcome_of
from bench.worker.measurement import StepAttempt

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

#: The machines of one measurement need not be started at the same time.
_MEETING_TIMEOUT_S = 600
#: When one rank fails the launcher asks the others to end; after this time it kills them. Rank 0
#: writes its account during that time.
_SHUTDOWN_S = "30"
_RUN_ID = "mlproject"

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


def run_ranks(folder: RecordFolder, journal: JournalWriter) -> None:
    """Do the job with this machine's ranks; write the account of each that could not itself."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN_S)
    kills_before = oom_kills()
    program = str(Path(__file__).with_name("__main__.py"))
    config = _launch_config(folder.read_job().config)
    try:
        elastic_launch(config, sys.executable)(program, "rank", str(folder.path))
    except ChildFailedError as error:
        kills = oom_kills()
        for rank, failure in error.failures.items():
            if folder.rank(rank).exists():
                continue
            outcome: Outcome = "oom" if (kills or 0) > (kills_before or 0) else "crashed"
            reason = describe_exit(failure.exitcode, kills_before, kills)
            folder.write(folder.rank(rank), RankAccount.of_killed(rank, outcome, reason))


def _launch_config(config: RunConfig) -> LaunchConfig:
    """As `torchrun --max-restarts 0` has it: a measurement that was cut is not begun again."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    meeting = meeting_point(config)
    node = 0 if meeting is None else meeting.node
    return LaunchConfig(
        min_nodes=config.nodes,
        max_nodes=config.nodes,
        nproc_per_node=config.devices,
        run_id=_RUN_ID,
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        # A machine alone takes any free port; several meet where the user says.
        rdzv_backend="c10d" if meeting is None else "static",
        rdzv_endpoint="localhost:0" if meeting is None else f"{meeting.address}:{meeting.port}",
        rdzv_configs={"timeout": _MEETING_TIMEOUT_S, "rank": node},
        # Else the host's name is looked up, which takes seconds where no server knows it.
        local_addr="localhost" if meeting is None else None,
    )


def run_rank(folder: RecordFolder, journal: JournalWriter) -> None:
    """Do this rank's part of the job, write `rank-N.json`, and as rank 0 `worker.json`."""
    job, asked = folder.read_job(), Event()
    team = DdpTeam(job.config, os.environ)
    kind = RoofsAttempt if job.kind == "ceilings" else StepAttempt
    part: Attempt = kind(folder, journal, team)

    def interrupt(signum: int, frame: FrameType | None) -> None:
        asked.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    outcome, reason = outcome_of(part.run)
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
        part.write_account(outcome, reason)
    if outcome == "ok":
        team.close()
        return
    # A rank that fails must not wait for the others in a destructor: its exit code is what makes
    # the elastic launcher end them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _report_failure(team: DdpTeam, folder: RecordFolder, account: RankAccount) -> None:
    team.report_failure(account.model_dump_json())
    if account.rank == 0:
        for rank, reported in team.reported_failures().items():
            if not folder.rank(rank).exists():
                folder.write(folder.rank(rank), RankAccount.model_validate_json(reported))
