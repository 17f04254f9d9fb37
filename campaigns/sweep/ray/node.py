"""What Ray runs on a node: it starts the launcher, holds its leash, and brings records home."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, cast

import psutil

from bench.launcher.recover import recover
from bench.records import RunRecord
from bench.records.folders import RecordFolder, cache_folder, record_folders
from campaigns.sweep.ray.parcel import pack

_PROJECT = Path(__file__).resolve().parents[3]
_POLL_S = 0.1


class NodeError(Exception):
    """Why this node could not do what it was asked; one line."""


def node_records() -> Path:
    """Return where this node keeps what it measures; by host, for homes that hosts share."""
    return cache_folder() / "ray" / (platform.node() or "host")


def identify(env: str, campaign: str, known: Collection[str]) -> tuple[dict[str, Any], list[bytes]]:
    """Return what this node has, and what `left_here` finds then. Raises `NodeError`."""
    facts = _launch({"do": "identify", "env": env, "records": str(node_records())})
    return facts, left_here(campaign, known)


def left_here(campaign: str, known: Collection[str]) -> list[bytes]:
    """Return the campaign's records here that the driver has not.

    They are left when a driver, or the way to it, dies at the wrong moment.
    """
    records = node_records()
    return [
        pack(folder)
        for folder in (record_folders(records) if records.is_dir() else ())
        if folder.record_id not in known and _belongs(folder, campaign)
    ]


def measure(order: dict[str, Any]) -> bytes:
    """Measure one configuration here and return its record's folder. Raises `NodeError`."""
    folder = RecordFolder(node_records() / order["record_id"])
    try:
        _launch(order | {"do": "measure", "records": str(folder.path.parent)})
    except NodeError:
        if not folder.config.is_file():
            raise
    while recover(folder) is None:  # the launcher was killed and its worker is not through
        time.sleep(_POLL_S)
    return pack(folder)


def here() -> None:
    """Run somewhere: what waits in Ray's queue tells an autoscaler which machines to add."""


def _belongs(folder: RecordFolder, campaign: str) -> bool:
    record = folder.readable_record()
    return isinstance(record, RunRecord) and record.config.campaign == campaign


def _launch(order: dict[str, Any]) -> dict[str, Any]:
    """Have the launcher do it. Ray cancels a task by KeyboardInterrupt: then let go of the leash.

    The launcher is waited for even so: it ends its worker and writes what was measured.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        answer, console = Path(temporary) / "answer.json", Path(temporary) / "console.txt"
        with console.open("wb") as output:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "campaigns.sweep.ray.launcher", str(answer)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=_environment(),
                start_new_session=True,
            )
        leash = cast("IO[bytes]", launcher.stdin)
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            leash.write(json.dumps(order).encode() + b"\n")
            leash.flush()
            _wait(launcher)
        leash.close()
        _wait(launcher)
        return _answer(answer, console)


def _wait(launcher: subprocess.Popen[bytes]) -> None:
    """Wait so that Ray can interrupt it: a plain wait would not notice."""
    while launcher.poll() is None:
        time.sleep(_POLL_S)


def _answer(answer: Path, console: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    except FileNotFoundError:
        words = console.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise NodeError(words[-1] if words else "the launcher was killed") from None
    if "error" in told:
        raise NodeError(told["error"])
    return told


def _environment() -> dict[str, str]:
    """This process's environment, less the thread count that Ray put there for its own tasks.

    Ray sets it after the process began; what was there from the beginning is the user's.
    """
    environment = dict(os.environ)
    if "OMP_NUM_THREADS" not in psutil.Process().environ():
        environment.pop("OMP_NUM_THREADS", None)
    paths = [str(_PROJECT), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
