"""Complexities that were computed before: a sweep's repeats ask for the same one each time."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from pydantic import ValidationError

from bench.cost.estimate import step_complexity
from bench.cost.fake_step import StepSpec
from bench.machine.repository import code_id
from bench.records import Complexity
from bench.records.folders import cache_folder, write_atomically


def remembered_complexity(spec: StepSpec, *, cache_bytes: int) -> Complexity:
    """Return `step_complexity` of the same arguments, from this user's cache if it is there.

    It depends on nothing but its arguments, torch, torchvision and this project's code, and takes
    a second, much of it to import what fake tensors need. A user's own model is computed
    each time: what its code depends on is not known.
    """
    if ":" in spec.arch:
        return step_complexity(spec, cache_bytes=cache_bytes)
    path = _path(spec, cache_bytes)
    with contextlib.suppress(OSError, ValidationError):
        return Complexity.model_validate_json(path.read_bytes())
    found = step_complexity(spec, cache_bytes=cache_bytes)
    with contextlib.suppress(OSError):  # a home that cannot be written to costs time, no result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, found.model_dump_json())
    return found


def _path(spec: StepSpec, cache_bytes: int) -> Path:
    versions = [metadata.version(name) for name in ("torch", "torchvision")]
    asked = json.dumps([code_id(), *versions, asdict(spec), cache_bytes])
    key = hashlib.sha256(asked.encode()).hexdigest()[:24]
    return cache_folder() / "complexity" / f"{key}.json"
