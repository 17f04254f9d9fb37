"""Folders that a data set is written into: whose they are, and when they are whole."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.errors import UserError

#: Lies at the root, where ImageFolder looks at folders only; written last.
MANIFEST = "dataset.json"
UNFINISHED = "dataset.json.part"

REASONS = {
    errno.ENOSPC: "the disk is full: free some space or give another --out",
    errno.EDQUOT: "your disk quota is used up: free some space or give another --out",
    errno.EACCES: "no permission to write there: give another --out",
    errno.EPERM: "no permission to write there: give another --out",
    errno.EROFS: "the file system is read-only: give another --out",
    errno.ENOTDIR: "a part of the path is a file: give another --out",
}


def claim(out: Path, settings: dict[str, Any]) -> bool:
    """Make `out` the folder of a data set with these `settings`; True if it is whole already.

    A half-made one with the same settings is taken up again. Raises `UserError` if `out` holds
    anything else.
    """
    for name in (MANIFEST, UNFINISHED):
        if (out / name).is_file():
            _refuse_other_settings(out, name, settings)
            return name == MANIFEST
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"out={str(out)!r}: holds something else: give a new or empty folder as --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / UNFINISHED).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return False


def finish(out: Path) -> None:
    """Declare the claimed folder `out` whole."""
    if (out / UNFINISHED).exists():
        (out / UNFINISHED).replace(out / MANIFEST)


@contextmanager
def disk_errors_named(out: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a `UserError` that names `out` and the remedy."""
    try:
        yield
    except OSError as error:
        reason = REASONS.get(error.errno or 0) or f"{error.strerror or error}: give another --out"
        raise UserError(f"out={str(out)!r}: {reason}") from None


def _refuse_other_settings(out: Path, name: str, settings: dict[str, Any]) -> None:
    try:
        found = json.loads((out / name).read_text(encoding="utf-8"))
        different = [key for key in settings if found.get(key) != settings[key]]
    except (ValueError, AttributeError):
        raise UserError(
            f"out={str(out)!r}: its {name} is damaged: delete the folder or give another --out"
        ) from None
    if different:
        was = ", ".join(f"{key}={found.get(key)}" for key in different)
        now = ", ".join(f"{key}={settings[key]}" for key in different)
        raise UserError(
            f"out={str(out)!r}: holds a data set of {was}, not {now}: "
            "delete the folder or give another --out"
        )
