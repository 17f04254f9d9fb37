"""Finds the process that measures, among whatever else the tests have started."""

from pathlib import Path

import psutil


def worker_of(records: Path) -> psutil.Process:
    """The child of this process that works on the one folder below `records`."""
    folder = str(records.resolve())
    [worker] = [
        child
        for child in psutil.Process().children()
        if any(word.startswith(folder) for word in _command_line(child))
    ]
    return worker


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it ended after the listing
        return []
