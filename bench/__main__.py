"""The worker process: `python -m bench measure FOLDER` or `python -m bench ceilings FOLDER`.

A fresh process per measurement, without MLflow and without threads of ours. It always leaves
`worker.json` unless it is killed; its exit code is 0 if it did.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from bench.folders import RecordFolder
from bench.journal import JournalWriter


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """The launcher asks with SIGTERM; what was measured so far is then written, not lost."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the worker named by the command line."""
    kind, path = sys.argv[1:]
    signal.signal(signal.SIGTERM, _interrupt)
    folder = RecordFolder(Path(path))
    journal = JournalWriter(folder.journal)
    journal.note("started")
    # torch is imported from here on: the line above tells an import from a start that hangs.
    from bench.worker import measure, measure_roofs

    journal.note("imported")
    {"measure": measure, "ceilings": measure_roofs}[kind](folder, journal)
    return 0


if __name__ == "__main__":
    sys.exit(main())
