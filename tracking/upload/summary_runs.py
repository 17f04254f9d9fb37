"""Runs that sum up repeats, for charts of MLflow's pages: one for each group of repeats."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from tracking import schema
from tracking.matching_runs import Mark, make_run
from tracking.reading.pages import all_experiments, all_runs
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy, is_unauthenticated
from tracking.store import open_client, tracking_call
from tracking.upload.upload import log_all, otherwise

_MARK = Mark(schema.SUMMARY_OF, schema.SUMMARY_WHOLE)


@dataclass
class Summarised:
    """How many summaries were made, changed, left as they were, and removed.

    `outdated` were to be removed, and these credentials may not: on a shared server its admin may.
    """

    made: int = 0
    changed: int = 0
    same: int = 0
    removed: int = 0
    outdated: int = 0


@tracking_call
def write_summaries(
    summaries: Sequence[schema.RepeatsSummary],
    campaigns: Collection[str],
    tracking_uri: str | None = None,
) -> Summarised:
    """Make the server hold exactly these summaries of `campaigns`.

    Each stands in the experiment of its repeats. One that is there is changed where it differs; one
    whose repeats are gone, or that another process made as well, is deleted. Raises
    `TrackingError`.
    """
    client, ask = open_client(tracking_uri), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    experiments = [found.experiment_id for found in all_experiments(client, ask)]
    there: dict[str, Run] = {}
    done, surplus = Summarised(), []
    wanted = {one.key for one in summaries}
    for run in all_runs(client, ask, experiments, schema.runs_filter(kind=schema.SUMMARY)):
        key = run.data.tags.get(schema.SUMMARY_OF, "")
        if run.data.tags.get(schema.CAMPAIGN) not in campaigns:
            continue
        if key in wanted and key not in there:
            there[key] = run
        else:
            surplus.append(run)
    for one in summaries:
        known = there.get(one.key)
        run = known or _made(client, ask, one)
        written = _write(client, ask, run, one)
        done.made += known is None
        done.changed += known is not None and written
        done.same += known is not None and not written
    for run in surplus:
        try:
            ask(client.delete_run, run.info.run_id)
        except MlflowException as error:
            if not is_unauthenticated(error):
                raise
            done.outdated += 1
        else:
            done.removed += 1
    return done


def _made(client: MlflowClient, ask: RetryPolicy, one: schema.RepeatsSummary) -> Run:
    first = ask(client.get_run, one.run_ids[0]).info
    tags = {
        schema.KIND: schema.SUMMARY,
        schema.SUMMARY_OF: one.key,
        schema.CAMPAIGN: one.campaign,
    }
    return make_run(
        *(client, ask, first.experiment_id, _MARK, tags), name=one.name, start_ms=first.start_time
    )


def _write(client: MlflowClient, ask: RetryPolicy, run: Run, one: schema.RepeatsSummary) -> bool:
    """Whether anything of the run had to be written."""
    tags = {**one.tags, schema.RUN_NAME: one.name, schema.SUMMARY_WHOLE: "true"}
    metrics, tags = otherwise(run, schema.Addition(one.metrics, tags))
    params = {name: text for name, text in one.params.items() if name not in run.data.params}
    whole = run.info.status == "FINISHED"
    if whole and not (metrics or tags or params):
        return False
    now_ms = int(time.time() * 1000)
    points = [Metric(name, value, now_ms, 0) for name, value in metrics.items()]
    log_all(client, ask, run.info.run_id, points, params, tags)
    if run.info.run_name != one.name:
        ask(client.update_run, run.info.run_id, name=one.name)
    if not whole:
        ask(client.set_terminated, run.info.run_id, end_time=run.info.start_time)
    return True
