"""Which process a tracked run waits for: a machine and a process there, by tags of the run."""

from __future__ import annotations

import hashlib
import platform
import uuid
from functools import lru_cache
from pathlib import Path

import psutil

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


def process_named(process: str) -> tuple[int, float] | None:
    """Return id and start (Unix seconds) of the process in the tag; None where it names none."""
    pid, _, started = process.partition("@")
    try:
        return (int(pid), float(started)) if int(pid) >= 0 else None
    except ValueError:
        return None
