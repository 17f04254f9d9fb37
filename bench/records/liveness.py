"""Whether a process still runs: one that works on a record, or one that is watched."""

from __future__ import annotations

import psutil

#: Start times of one process, read twice, differ by less.
_START_TOLERANCE_S = 1.0


def is_running(process: int | psutil.Process, started_s: float | None = None) -> bool:
    """Whether a process, given by its number or as psutil knows it, runs; a zombie does not.

    `started_s` is its start in seconds since 1970 (`psutil.Process.create_time`): a process that
    started at another time was only given the same number. A process that may not be looked at
    runs.
    """
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        if not found.is_running() or found.status() == psutil.STATUS_ZOMBIE:
            return False
        return started_s is None or abs(found.create_time() - started_s) < _START_TOLERANCE_S
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OverflowError):
        return False
