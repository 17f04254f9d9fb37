"""Complexities that were computed before: a sweep's repeats ask for the same one each time."""

from __future__ import annotations

import contextlib
import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench.cost.estimate import step_complexity
from bench.machine.source_hash import code_id
from bench.records import Complexity
from bench.records.folders import write_atomically
from bench.records.places import cache_folder


def remembered_complexity(**arguments: Any) -> Complexity:
    """Return `step_complexity` of the same arguments, from this user's cache if it is there.

    It depends on nothing but its arguments, torch, torchvision and this project's code, and takes
    a second, much of it to import what fake tensors need. A model of the user's own is computed
    anew each time: what its code depends on is not known.
    """
    if ":" in arguments["arch"]:
        return step_complexity(**arguments)
    path = _path(arguments)
    with contextlib.suppress(OSError, ValidationError):
        return Complexity.model_validate_json(path.read_bytes())
    found = step_complexity(**arguments)
    with contextlib.suppress(OSError):  # a home that cannot be written to costs time, no result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, found.model_dump_json())
    return found


def _path(arguments: dict[str, Any]) -> Path:
    versions = [metadata.version(name) for name in ("torch", "torchvision")]
    asked = json.dumps([code_id(), *versions, arguments], sort_keys=True)
    key = hashlib.sha256(asked.encode()).hexdigest()[:24]
    return cache_folder() / "complexity" / f"{key}.json"
