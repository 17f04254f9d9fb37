"""Runs of a selection on this disk, so that the next search has only to ask for what is new."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.records.folders import cache_folder, write_atomically
from tracking.upload.tracked_run import TrackedRun

_FORMAT = 1
#: Files in the cache; the one that was not read for longest goes first.
_MOST_FILES = 20


@dataclass(frozen=True)
class KeptRuns:
    """What an earlier search found: by run id, and when it began by this machine's clock."""

    asked_at: str
    experiments: Mapping[str, int | None]  # id -> creation time in ms, which tells stores apart
    runs: dict[str, TrackedRun]


def kept_file(server: str, experiments: Sequence[str] | None, filter_string: str) -> Path:
    """Return where the runs of a selection are kept."""
    selection = json.dumps([server, experiments and sorted(experiments), filter_string])
    name = hashlib.sha256(selection.encode()).hexdigest()[:32]
    return cache_folder() / "runs" / f"{name}.jsonl"


def read_kept(path: Path) -> KeptRuns | None:
    """Return what `path` keeps; None where there is nothing, or nothing whole."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        about = json.loads(head)
        if about["format"] != _FORMAT or about["crc32"] != zlib.crc32(body):
            return None
        runs = [_run(about["keys"], json.loads(line)) for line in body.splitlines()]
        path.touch()
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return KeptRuns(about["asked_at"], about["experiments"], {run.run_id: run for run in runs})


def write_kept(path: Path, kept: KeptRuns) -> None:
    """Keep `kept`, whole or not at all; a full disk costs the next search time, nothing else."""
    keys: dict[tuple[str, ...], int] = {}  # most runs have the same ones: each list is kept once
    lines = [json.dumps(_row(keys, run)) for run in kept.runs.values()]
    body = "\n".join(lines)
    about = {
        "format": _FORMAT,
        "crc32": zlib.crc32(body.encode()),
        "asked_at": kept.asked_at,
        "experiments": dict(kept.experiments),
        "keys": list(keys),
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{json.dumps(about)}\n{body}")
        others = sorted(path.parent.glob("*.jsonl"), key=lambda one: one.stat().st_mtime)
        for old in others[:-_MOST_FILES]:
            old.unlink(missing_ok=True)


def forget(path: Path) -> None:
    """Keep nothing there."""
    with contextlib.suppress(OSError):
        path.unlink()


def _row(keys: dict[tuple[str, ...], int], run: TrackedRun) -> list[Any]:
    row: list[Any] = [run.run_id, run.name, run.status, run.start_time.timestamp()]
    row.append(run.artifact_uri)
    for values in (run.params, run.metrics, run.tags):
        row += [keys.setdefault(tuple(values), len(keys)), list(values.values())]
    return row


def _run(keys: Sequence[Sequence[str]], row: Sequence[Any]) -> TrackedRun:
    run_id, name, status, start_s, artifact_uri, *rest = row
    params, metrics, tags = (
        dict(zip(keys[which], values, strict=True))
        for which, values in zip(rest[::2], rest[1::2], strict=True)
    )
    start_time = datetime.fromtimestamp(start_s, timezone.utc)
    return TrackedRun(run_id, name, status, start_time, params, metrics, tags, artifact_uri)
