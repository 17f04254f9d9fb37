"""The end of tracked runs that nobody will end."""

from __future__ import annotations

import time

from mlflow.entities import Run, RunTag

from tracking import schema
from tracking.matching_runs import of_this_project
from tracking.reading.pages import all_experiments, all_runs
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
from tracking.store import open_client, tracking_call


@tracking_call
def reap(older_than_s: float, tracking_uri: str | None = None) -> tuple[list[Run], list[Run]]:
    """End the runs of this project that are RUNNING and began more than `older_than_s` ago.

    They are those that an upload of ours made, or that `mlflow run` of this project made. Return
    the ended ones, and the younger ones, which are left. Raises `TrackingError`.
    """
    client, ask = open_client(tracking_uri), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    experiments = [found.experiment_id for found in all_experiments(client, ask)]
    # read to the end first: a run that is ended leaves the selection that is paged through
    running = list(all_runs(client, ask, experiments, "attributes.status = 'RUNNING'"))
    ended: list[Run] = []
    left: list[Run] = []
    for run in running:
        if schema.KIND not in run.data.tags and not of_this_project(run):
            continue
        age_s = time.time() - run.info.start_time / 1000
        if age_s <= older_than_s:
            left.append(run)
        elif ask(client.get_run, run.info.run_id).info.status == "RUNNING":  # still
            reason = f"ended by sync --reap: it began {age_s / 3600:.1f} h before"
            tags = {schema.OUTCOME: "interrupted", **run.data.tags, schema.REASON: reason}
            kept = [RunTag(name, tags[name]) for name in (schema.OUTCOME, schema.REASON)]
            ask(client.log_batch, run.info.run_id, tags=kept)
            ask(client.set_terminated, run.info.run_id, schema.STATUS["interrupted"])
            ended.append(run)
    return ended, left
