"""A run filled with what its record holds, in few requests, each of which may be sent twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from bench.records.folders import RecordFolder
from tracking import schema
from tracking.patience import Patience
from tracking.upload.owner import owner_tags

#: A server's limits for one request.
_METRICS_PER_BATCH = 1000
_PARAMS_PER_BATCH = 100

ARTIFACTS = (
    "iterations.csv",
    "telemetry.csv",
    "environment.json",
    "console.log",
    "journal.jsonl",
    "ops.csv",
    "kernels.csv",
    schema.RECORD_ARTIFACT,
)
#: Folders that tools leave in a profile's, kept as they are.
_ARTIFACT_FOLDERS = ("ncu", "perf")


def fill(
    client: MlflowClient,
    ask: Patience,
    run: Run,
    content: schema.Content,
    folder: RecordFolder,
    *,
    found: bool,
) -> None:
    """Log what the record holds in as few requests as the server's limits allow.

    Everything may be sent twice: files and tags are overwritten, and the server keeps equal
    parameters and equal points once. The tag that says whole goes with the last points.
    """
    run_id = run.info.run_id
    repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=client.tracking_uri)
    for path, place in _files(folder.path):
        ask(repository.log_artifact, str(path), place)
    tags = [RunTag(*tag) for tag in schema.whole_tags().items()]
    if found:
        tags += [RunTag(*tag) for tag in {**content.tags, **owner_tags()}.items()]
    metrics = [Metric(p.key, p.value, int(p.unix_s * 1000), p.step) for p in content.metrics]
    params = [
        Param(key, text) for key, text in content.params.items() if key not in run.data.params
    ]
    last = min(len(metrics), _METRICS_PER_BATCH - len(tags) - _PARAMS_PER_BATCH)
    for start in range(0, len(metrics) - last, _METRICS_PER_BATCH):
        end = min(start + _METRICS_PER_BATCH, len(metrics) - last)
        ask(client.log_batch, run_id, metrics[start:end])
    for start in range(0, len(params) - _PARAMS_PER_BATCH, _PARAMS_PER_BATCH):
        ask(client.log_batch, run_id, params=params[start : start + _PARAMS_PER_BATCH])
    rest = params[(len(params) - 1) // _PARAMS_PER_BATCH * _PARAMS_PER_BATCH :] if params else []
    ask(client.log_batch, run_id, metrics[len(metrics) - last :], rest, tags)


def _files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """The artifacts of a record with the folder of the run that each goes to.

    Links are left out: a folder that somebody else wrote must not name files of this machine.
    """
    for name in ARTIFACTS:
        if _is_plain(folder / name):
            yield folder / name, None
    for name in _ARTIFACT_FOLDERS:
        for root, folders, files in os.walk(folder / name, onerror=None):
            folders[:] = sorted(each for each in folders if not Path(root, each).is_symlink())
            for file in sorted(files):
                if _is_plain(Path(root, file)) and not (folder / name).is_symlink():
                    yield Path(root, file), Path(root).relative_to(folder).as_posix()


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
