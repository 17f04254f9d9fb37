"""The worker process: `python bench/worker/__main__.py measure FOLDER`, or another of `_WORKERS`.

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
    "measure": ("bench.worker.measurement", "measure_for_launcher"),
    "ceilings": ("bench.worker.this_machine", "measure_roofs"),
    "identify": ("bench.worker.this_machine", "identify"),
    "profile": ("bench.worker.profile", "profile"),
    "ranks": ("bench.worker.agent", "run_ranks"),
    "rank": ("bench.worker.rank", "measure_rank"),
    "profile-ranks": ("bench.worker.agent", "profile_ranks"),
    "profile-rank": ("bench.worker.rank", "profile_rank"),
}

#: Workers that have nothing left to do once their account is written. An orderly end of torch takes
#: a second; tools that watch from outside (ncu, perf) and torch's elastic launcher need it.
_END_AT_ONCE = {"measure", "ceilings", "identify"}


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """The launcher asks with SIGTERM; what was measured so far is then written, not lost."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the worker named by the command line."""
    kind, path = sys.argv[1:]
    signal.signal(signal.SIGTERM, _interrupt)
    folder = RecordFolder(Path(path))
    # torch's elastic launcher numbers the processes that share one measurement and its journal.
    who = {"rank": int(os.environ["RANK"]), "pid": os.getpid()} if kind.endswith("rank") else {}
    journal = JournalWriter(folder.journal, always=who)
    journal.note("started")
    # torch is imported from here on: the line above separates an import from a start that hangs.
    gc.disable()  # what imports make stays; to look through it takes a tenth of their time
    module, function = _WORKERS[kind]
    work = getattr(import_module(module), function)
    gc.enable()
    journal.note("imported")
    work(folder, journal)
    if kind in _END_AT_ONCE:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
