"""Folders of this user outside the project."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `mlproject` below `XDG_CACHE_HOME`, or below what the system uses in its place."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return Path(base or Path.home() / ".cache") / "mlproject"
