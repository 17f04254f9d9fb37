"""Processes of a test's own: a small run for a worker, that worker, and a fresh Python."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from bench.config import RunConfig
from bench.records.folders import RecordFolder


def small_run(model="small", **changes) -> RunConfig:
    """A few iterations of one of `crashing_models` on a processor, which nothing is to explain."""
    known = {
        "arch": f"crashing_models:{model}",
        "backend": "cpu",
        "batch_size": 4,
        "image_size": 32,
        "warmup_iters": 2,
        "iters": 6,
        "explain": False,
    }
    return RunConfig(**{**known, **changes})


def output_of(program: str, *arguments: str, **environment: str) -> str:
    """What a Python with this one's path and `environment` prints when it runs `program`."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def worker_of(records: Path) -> psutil.Process:
    """The child of this process that works on the one folder below `records`."""
    folder = str(records.resolve())
    [worker] = [
        child
        for child in psutil.Process().children()
        if any(word.startswith(folder) for word in command_line(child))
    ]
    return worker


def command_line(process: psutil.Process) -> list[str]:
    """The words that started a process; none once it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:  # it ended after the listing
        return []


def until(condition, process: subprocess.Popen):
    """What `condition` returns once that is something; the process is at work till then."""
    while process.poll() is None:
        if found := condition():
            return found
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)  # leaves the processor to the worker
    raise AssertionError(process.communicate())


def in_window(process: subprocess.Popen, records: Path) -> RecordFolder:
    """The folder of the only measurement in `records`, once its window has begun."""

    def begun():
        journals = records.glob("*/journal.jsonl")
        return [file.parent for file in journals if '"window_started"' in file.read_text()]

    [folder] = until(begun, process)
    return RecordFolder(folder)
