"""The cost of one training step: FLOP, bytes and memory of any model, from one fake step.

Costs that were counted before are kept in a cache of the user's; these need no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from bench.config import package_of
from bench.records import Complexity, StepSpec
from bench.records.complexity import ListedStep
from bench.records.folders import cache_folder, write_atomically

Kept = TypeVar("Kept", Complexity, ListedStep)

_BENCH = Path(__file__).resolve().parents[1]
#: The folders whose code decides a count.
_CODE = ("cost", "training", "records")
_MOST_FILES = 2000


def cached_complexity(spec: StepSpec) -> Complexity:
    """Return `step_complexity` of `spec`, from this user's cache if it is there.

    It depends on nothing but `spec`, torch, the package of the model, timm's setting and
    this project's code, and takes seconds, most of them to import torch. What is in a file of the
    user's, a model or a configuration, is computed each time. The cache has the newest 2,000 files.
    """
    return _cached(Complexity, "complexity", spec, "step_complexity")


def cached_ops(spec: StepSpec) -> ListedStep:
    """Return `listed_step` of `spec`, from the same cache by the same rules."""
    return _cached(ListedStep, "ops", spec, "listed_step")


@cache
def _installed(package: str) -> tuple[list[str], list[str]]:
    """The code that decides a count, and the versions of what it counts with."""
    from bench.machine.repository import code_id

    versions = [metadata.version(name) for name in ("torch", "torchvision", package)]
    return [code_id(_BENCH / part) for part in _CODE], versions


def _path_of(folder: str, spec: StepSpec) -> Path | None:
    """Where the count of a step is kept; None where what decides it is in a file of the user's."""
    package = package_of(spec.arch)
    if package is None:
        return None
    code, versions = _installed(package)
    # timm reads from the variable which attention its models have
    facts = (code, versions, os.environ.get("TIMM_FUSED_ATTN"), asdict(spec))
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    path: Path = cache_folder() / folder / f"{key}.json"
    return path


def is_counted(spec: StepSpec) -> bool:
    """Return whether `cached_complexity` of `spec` is read from the cache, without torch."""
    path = _path_of("complexity", spec)
    return path is not None and path.is_file()


def _cached(kind: type[Kept], folder: str, spec: StepSpec, counting: str) -> Kept:
    """What the function `counting` of `estimate` makes of `spec`, read or computed and kept."""

    def counted() -> Kept:
        found: Kept = getattr(import_module("bench.cost.estimate"), counting)(spec)
        return found

    path = _path_of(folder, spec)
    if path is None:
        return counted()
    with contextlib.suppress(OSError, ValidationError):
        return kind.model_validate_json(path.read_bytes())
    made = counted()
    with contextlib.suppress(OSError):  # a home that cannot be written to costs time, no result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, made.model_dump_json())
        files = list(path.parent.glob("*.json"))
        if len(files) > _MOST_FILES:
            newest_last = sorted(files, key=lambda file: file.stat().st_mtime)
            for old in newest_last[:-_MOST_FILES]:
                old.unlink(missing_ok=True)
    return made
