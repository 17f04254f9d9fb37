"""Processes of a test's own: a small run for a worker, that worker, and a fresh Python."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from bench.config import RunConfig


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
