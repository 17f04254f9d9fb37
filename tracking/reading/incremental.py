"""A search that reads of a large selection only what is new or changed since the last one.

MLflow does not say what changed. But a run of ours is final once its record is uploaded and it has
ended, and says when that was (`schema.UPLOADED_AT`). So runs are kept on this disk, and the next
search asks for those uploaded since, with room for clocks that differ; for those without that tag;
for those that had not ended; and then whether the number of runs agrees. Where it does not, runs
were deleted, or something came that this could not see: the deleted ones are asked for, and if that
does not explain it, everything is read again.

What it cannot see is a final run that somebody renames or tags by hand, unless its selection
thereby gains or loses a run. `refresh` reads all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException

from bench.records.folders import cache_folder, write_atomically
from tracking import schema
from tracking.reading.tracked_runs import Selection, TrackedRun, chosen_experiments
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
from tracking.store import open_existing, public_uri, tracking_call

#: A smaller selection is read whole each time, which is as quick.
KEPT_FROM = 500
#: How much the clocks of those who upload may differ before everything is read again.
_CLOCKS_DIFFER = timedelta(minutes=10)
#: A server at work gets new runs while it is asked.
_ATTEMPTS = 2


_FORMAT = 1
#: Files in the cache; the one that was not read for longest goes first.
_MOST_FILES = 20


@tracking_call
def search_kept_runs(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
) -> list[TrackedRun]:
    """Return what `search_runs` returns, read again only where it is new, changed, or `refresh`.

    Raises as `search_runs` does, and `UserError` for an embedded store that does not exist.
    """
    client, ask = open_existing(tracking_uri), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    chosen = chosen_experiments(client, ask, experiments)
    selection = Selection(client, ask, chosen, filter_string)
    path = kept_file(public_uri(tracking_uri), experiments, filter_string)
    asked_at = schema.sortable(datetime.now(timezone.utc))
    kept = None if refresh else read_kept(path)
    runs = None
    if kept is not None and _is_same_store(kept, selection):
        runs = _brought_up_to_date(selection, kept)
    if runs is None:
        runs = {run.run_id: run for run in selection.runs()}
    if len(runs) < KEPT_FROM:
        with contextlib.suppress(OSError):
            path.unlink()
    elif kept is None or runs != kept.runs:
        created = {one.experiment_id: one.creation_time for one in chosen}
        write_kept(path, KeptRuns(asked_at, created, runs))
    return sorted(runs.values(), key=lambda run: (-run.start_time.timestamp(), run.run_id))


def _is_same_store(kept: KeptRuns, selection: Selection) -> bool:
    """Whether no experiment was made again under its old number, as in a new store."""
    return all(
        kept.experiments.get(one.experiment_id, one.creation_time) == one.creation_time
        for one in selection.experiments
    )


def _brought_up_to_date(selection: Selection, kept: KeptRuns) -> dict[str, TrackedRun] | None:
    """Return all runs of the selection; None where that takes reading them all."""
    runs = {run.run_id: run for run in kept.runs.values() if _is_final(run)}
    try:
        since = _since(kept, runs.values())
    except ValueError:  # a tag of another program
        return None
    open_ids = [
        run_id
        for run_id, run in kept.runs.items()
        if run_id not in runs and schema.UPLOADED_AT in run.tags
    ]
    try:
        for _ in range(_ATTEMPTS):
            for found in (
                selection.uploaded_since(since),
                selection.runs(f"tags.`{schema.UPLOADED_AT}` IS NULL"),
                selection.of_ids(open_ids),
            ):
                runs |= {run.run_id: run for run in found}
            if selection.has(len(runs)):
                return runs
            for gone in selection.runs(deleted=True):
                runs.pop(gone.run_id, None)
            if selection.has(len(runs)):
                return runs
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":  # an older server knows less of filters
            raise
    return None


def _since(kept: KeptRuns, final: Iterable[TrackedRun]) -> datetime:
    """When the kept runs end; a clock that is ahead of this one's does not count."""
    newest = max((run.tags[schema.UPLOADED_AT] for run in final), default=kept.asked_at)
    last = min(newest, kept.asked_at)
    return datetime.fromisoformat(last.replace("Z", "+00:00")) - _CLOCKS_DIFFER


def _is_final(run: TrackedRun) -> bool:
    return schema.UPLOADED_AT in run.tags and run.status not in ("RUNNING", "SCHEDULED")


@dataclass(frozen=True)
class KeptRuns:
    """What an earlier search found: by run id, and when it began by this machine's clock."""

    asked_at: str
    experiments: Mapping[str, int | None]  # id -> creation time in ms, which differs between stores
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
