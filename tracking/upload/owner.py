"""Which process, on which machine, a tracked run waits for, so that one left behind is ended."""

from __future__ import annotations

import hashlib
import os
import platform
import uuid
from functools import lru_cache
from pathlib import Path

import psutil

from bench.records.folders import is_running
from tracking import schema


def owner_tags() -> dict[str, str]:
    """Return the tags that name this process: its machine (hashed), its id and when it started."""
    me = psutil.Process()
    return {
        schema.HOST: this_host(),
        schema.PROCESS: f"{me.pid}@{me.create_time():.2f}",
    }


@lru_cache
def this_host() -> str:
    """Return twelve hex digits that name this machine and say nothing else of it."""
    try:
        known = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        known = f"{uuid.getnode():x}"
    return hashlib.sha256(f"{platform.node()} {known}".encode()).hexdigest()[:12]


def owner_is_running(process: str) -> bool | None:
    """Whether a process of this machine, named as in the tag, still runs; None for no such name."""
    pid, _, started = process.partition("@")
    try:
        return is_running(int(pid), float(started))
    except ValueError:
        return None


def is_worked_on(run_id: str) -> bool:
    """Whether a process of this machine works for a run that `mlflow run` made."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("MLFLOW_RUN_ID") == run_id:
                return True
        except (psutil.Error, OSError):
            continue
    return False
