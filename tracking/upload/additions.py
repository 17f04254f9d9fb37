"""What runs on a server carry beside their records: filled in, or changed where it differs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from bench.records.journal import Clock
from tracking import schema
from tracking.reading.pages import all_experiments, all_runs
from tracking.retry import (
    ANSWER_LIMIT_S,
    AWAY_LIMIT_S,
    RetryPolicy,
    failure_line,
    is_unauthenticated,
)
from tracking.store import open_client, tracking_call
from tracking.upload.upload import log_all, otherwise

#: Ids in one filter; MLflow parses longer ones slowly.
_IDS_AT_ONCE = 100


@dataclass
class Added:
    """How many runs got what they lacked, got other values than they had, or had all.

    `refused` could not be written, for the reason in `why`; `left` were not come to in time.
    """

    new: int = 0
    changed: int = 0
    same: int = 0
    refused: int = 0
    left: int = 0
    why: str = ""


@tracking_call
def add_to_runs(
    additions: Mapping[str, schema.Addition],
    tracking_uri: str | None = None,
    *,
    limit_s: float = 60.0,
    clock: Clock = time.monotonic,
) -> Added:
    """Give runs what they are to carry, by run id; what differs takes the place of what was there.

    Runs that have all of it are not written to. In an experiment that these credentials may not
    write to nothing is tried again. After `limit_s` the rest is left for the next time. Raises
    `TrackingError` where the server is away.
    """
    client, ask = open_client(tracking_uri), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    until_s, added = clock() + limit_s, Added()
    closed: set[str] = set()
    left = set(additions)
    for run in _runs(client, ask, list(additions)):
        if clock() > until_s:
            break
        left.discard(run.info.run_id)
        addition = additions[run.info.run_id]
        metrics, tags = otherwise(run, addition)
        if not metrics and not tags:
            added.same += 1
        elif run.info.experiment_id in closed:
            added.refused += 1
        else:
            try:
                now_ms = int(time.time() * 1000)
                points = [Metric(name, value, now_ms, 0) for name, value in metrics.items()]
                log_all(client, ask, run.info.run_id, points, tags=tags)
            except MlflowException as error:
                if not is_unauthenticated(error):
                    raise
                closed.add(run.info.experiment_id)
                added.refused += 1
                added.why = failure_line(error)
            else:
                had = metrics.keys() & run.data.metrics.keys() or tags.keys() & run.data.tags.keys()
                added.changed += bool(had)
                added.new += not had
    added.left = len(left)
    return added


def _runs(client: MlflowClient, ask: RetryPolicy, run_ids: list[str]) -> Iterator[Run]:
    experiments = [found.experiment_id for found in all_experiments(client, ask)]
    for start in range(0, len(run_ids), _IDS_AT_ONCE):
        ids = ", ".join(f"'{one}'" for one in run_ids[start : start + _IDS_AT_ONCE])
        yield from all_runs(client, ask, experiments, f"attributes.run_id IN ({ids})")
