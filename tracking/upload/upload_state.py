"""What a record folder remembers of its copies on servers; needs neither MLflow nor a network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from bench.records.folders import RecordFolder, write_atomically

#: `user:password@` of a URI, wherever a message quotes one.
CREDENTIALS = re.compile(r"(?<=//)[^/@\s]*@")
_SQLITE = "sqlite:///"


class LockedError(OSError):
    """Another process uploads this record, and did not end in time."""


@dataclass(frozen=True)
class Copy:
    """A tracked run that holds, or is to hold, a record; `run_id` None: asked for, not answered.

    `changed`: the record on disk says more than the copy did when it was whole.
    """

    run_id: str | None
    whole: bool
    changed: bool = False


def server_name(tracking_uri: str) -> str:
    """Return a tracking URI without user name, password and query, the same from every folder."""
    plain = CREDENTIALS.sub("", tracking_uri).partition("?")[0].rstrip("/")
    path = plain.removeprefix(_SQLITE)
    if path == plain or not path or Path(path).is_absolute():
        return plain
    return _SQLITE + Path(path).absolute().as_posix()


def recall(folder: RecordFolder, server: str) -> Copy | None:
    """Return the folder's copy on `server`, or None where no attempt was made from here."""
    known = _all(folder).get(server)
    if not isinstance(known, dict):
        return None
    run_id = known.get("run_id")
    return Copy(
        run_id if isinstance(run_id, str) else None,
        known.get("whole") is True,
        known.get("changed") is True,
    )


def remember(
    folder: RecordFolder, server: str, run_id: str | None, *, whole: bool, changed: bool = False
) -> None:
    """Note in the folder what became of its upload to `server`."""
    copy = {"run_id": run_id, "whole": whole} | ({"changed": True} if changed else {})
    write_atomically(folder.uploaded, json.dumps(_all(folder) | {server: copy}, indent=1))


def remember_change(folder: RecordFolder) -> None:
    """Note that each copy of the folder's record has to be filled again."""
    for server in _all(folder):
        known = recall(folder, server)
        if known is not None:
            remember(folder, server, known.run_id, whole=False, changed=True)


def remember_project_run(folder: RecordFolder) -> None:
    """Note the run that `mlflow run` made for this process, so that a crash leaves it findable.

    The process that recovers the folder then ends that very run.
    """
    run_id, uri = os.environ.get("MLFLOW_RUN_ID"), os.environ.get("MLFLOW_TRACKING_URI")
    if run_id and uri:
        remember(folder, server_name(uri), run_id, whole=False)


@contextmanager
def uploading(folder: RecordFolder, wait_s: float) -> Iterator[None]:
    """Hold the folder against other uploads of it; the system frees it if this process dies.

    Raises `LockedError` where another process still holds it after `wait_s`.
    """
    path = folder.path / ".uploading.lock"
    if path.is_symlink():
        raise LockedError(f"{path} is a link: remove it")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise LockedError(f"another process is uploading {folder.path.name}") from None
    try:
        yield
    finally:
        lock.release()


def _all(folder: RecordFolder) -> dict[str, object]:
    try:
        known = json.loads(folder.uploaded.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
