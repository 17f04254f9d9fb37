"""The worker process: `python bench/worker/__main__.py measurement FOLDER`, or another role.

A fresh process per measurement, without MLflow and without threads of ours. It always leaves
`worker.json` unless it is killed; its exit code is 0 if it did.
"""

from __future__ import annotations

import os
import sys

if not __package__:  # started by its path
    # A `random.py` or a folder `bench/` where the command was typed is none of ours, and the names
    # of this folder are none of Python's. Only `module:callable` looks in the working folder.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - no pathlib yet
    project = os.path.dirname(os.path.dirname(here))  # noqa: PTH120
    elsewhere = (path for path in sys.path if path not in ("", os.getcwd(), here, project))  # noqa: PTH109
    sys.path[:] = [project, *elsewhere]

import gc
import signal
from importlib import import_module
from pathlib import Path
from types import FrameType

from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter

_WORKERS = {
    "measurement": ("bench.worker.measurement", "StepAttempt"),
    "profile": ("bench.worker.measurement", "StepAttempt"),
    "ceilings": ("bench.worker.attempt", "RoofsAttempt"),
    "machine": ("bench.worker.attempt", "MachineAttempt"),
    "ranks": ("bench.worker.ranks", "run_ranks"),
    "rank": ("bench.worker.ranks", "run_rank"),
}

#: Workers that have nothing left to do once their account is written. An orderly end of torch takes
#: a second; tools that watch from outside (ncu, perf) and torch's elastic launcher need it.
_END_AT_ONCE = {"measurement", "ceilings", "machine"}


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """The launcher asks with SIGTERM; what was measured so far is then written, not lost."""
    raise KeyboardInterrupt


def main() -> int:
    """Do the job in the folder, in the role that the command line names."""
    role, path = sys.argv[1:]
    signal.signal(signal.SIGTERM, _interrupt)
    folder = RecordFolder(Path(path))
    folder.hold()
    # torch's elastic launcher numbers the processes that share one measurement and its journal.
    who = {"rank": int(os.environ["RANK"]), "pid": os.getpid()} if role == "rank" else {}
    journal = JournalWriter(folder.journal, always=who)
    journal.note("started")
    # torch is imported from here on: the line above separates an import from a start that hangs.
    gc.disable()  # what imports make stays; to look through it takes a tenth of their time
    module, name = _WORKERS[role]
    work = getattr(import_module(module), name)
    gc.enable()
    journal.note("imported")
    attempt = work(folder, journal)
    if attempt is not None:
        attempt.attempt()
    from bench.machine import value_or_none
    from bench.machine.limits import peak_memory_bytes

    if peak_bytes := value_or_none(peak_memory_bytes):
        journal.note("memory", max_rss_bytes=peak_bytes)
    if role in _END_AT_ONCE and not attempt.job.tool:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
