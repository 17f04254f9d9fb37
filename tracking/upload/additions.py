"""What runs on a server carry beside their records: filled in, or changed where it differs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mlflow.entities import Metric

from bench.records.journal import Clock
from tracking import schema
from tracking.connection import Server, TrackingError
from tracking.upload.upload import otherwise


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
    server, until_s, added = Server(tracking_uri), clock() + limit_s, Added(left=len(additions))
    closed: set[str] = set()
    for run in server.runs(list(additions)):
        if clock() > until_s:
            break
        added.left -= 1
        run_id = run.info.run_id
        metrics, tags = otherwise(run, additions[run_id])
        if not metrics and not tags:
            added.same += 1
        elif run.info.experiment_id in closed:
            added.refused += 1
        else:
            now_ms = int(time.time() * 1000)
            points = [Metric(name, value, now_ms, 0) for name, value in metrics.items()]
            try:
                server.log(run_id, points, tags=tags)
            except TrackingError as error:
                if not error.denied:
                    raise
                closed.add(run.info.experiment_id)
                added.refused += 1
                added.why = str(error)
            else:
                had = metrics.keys() & run.data.metrics.keys() or tags.keys() & run.data.tags.keys()
                added.changed += bool(had)
                added.new += not had
    return added
