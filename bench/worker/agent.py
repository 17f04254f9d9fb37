"""One machine's part of work on several devices: the elastic launcher of its ranks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from bench.config import RunConfig
from bench.config.parsing import meeting_point
from bench.machine.limits import describe_exit, oom_kills
from bench.records import RankAccount
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.worker.profile import asked_config

#: The machines of one measurement need not be started at the same time.
_MEETING_TIMEOUT_S = 600
#: When one rank fails the launcher asks the others to end; after this time it kills them. Rank 0
#: writes its account during that time.
_SHUTDOWN_S = "30"
_RUN_ID = "mlproject"


def run_ranks(folder: RecordFolder, journal: JournalWriter) -> None:
    """Measure with this machine's ranks; write the account of each that could not itself."""
    _run(folder, RunConfig.model_validate_json(folder.config.read_text(encoding="utf-8")), "rank")


def profile_ranks(folder: RecordFolder, journal: JournalWriter) -> None:
    """Profile with this machine's ranks; write the account of each that could not itself."""
    _run(folder, asked_config(folder), "profile-rank")


def _run(folder: RecordFolder, config: RunConfig, worker: str) -> None:
    """Run the ranks to their end, each a worker of that name."""
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN_S)
    kills_before = oom_kills()
    try:
        elastic_launch(_launch_config(config), sys.executable)(
            *(str(Path(__file__).with_name("__main__.py")), worker, str(folder.path))
        )
    except ChildFailedError as error:
        kills = oom_kills()
        for rank, failure in error.failures.items():
            if folder.rank(rank).exists():
                continue
            account = RankAccount(
                rank=rank,
                outcome="oom" if (kills or 0) > (kills_before or 0) else "crashed",
                reason=describe_exit(failure.exitcode, kills_before, kills),
                cause="killed",
                ended_unix_s=time.time(),
            )
            folder.write(folder.rank(rank), account)


def _launch_config(config: RunConfig) -> LaunchConfig:
    """As `torchrun --max-restarts 0` has it: a measurement that was cut is not begun again."""
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
