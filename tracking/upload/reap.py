"""The end of tracked runs whose process is gone."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import psutil
from mlflow.entities import Run, RunTag

from bench.records.liveness import is_running
from tracking import schema
from tracking.matching_runs import RECORD, is_whole, runs_with
from tracking.reading.pages import all_experiments, all_runs
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
from tracking.store import is_embedded, open_client, public_uri, tracking_call
from tracking.upload.owner import process_named, this_host

_SLACK_S = 5.0


class ReapedRun(NamedTuple):
    """A run that was found RUNNING: `ended` by us, or left, and why."""

    run_id: str
    name: str
    ended: bool
    why: str


@tracking_call
def reap(older_than_s: float | None = None, tracking_uri: str | None = None) -> list[ReapedRun]:
    """End the runs of this project that are RUNNING though their process is gone.

    A process of this machine is looked for. What another or an unknown machine runs is ended only
    if it began more than `older_than_s` ago. A second run of a record that is whole in another is
    deleted. Raises `TrackingError`.
    """
    client, ask = open_client(tracking_uri), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    experiments = [found.experiment_id for found in all_experiments(client, ask)]
    local = is_embedded(public_uri(tracking_uri))
    # read to the end first: a run that is ended leaves the selection that is paged through
    running = list(all_runs(client, ask, experiments, "attributes.status = 'RUNNING'"))
    reaped = []
    for run in filter(_is_ours, running):
        ended, why = _judge(run, older_than_s, local=local)
        if ended:
            if ask(client.get_run, run.info.run_id).info.status != "RUNNING":
                continue  # its process ended it after it was read
            record_id = run.data.tags.get(schema.RECORD_ID)
            twins = runs_with(client, ask, RECORD.tag, record_id) if record_id else []
            if any(is_whole(twin) for twin in twins if twin.info.run_id != run.info.run_id):
                why = f"{why}; its record is whole in another run, so this one is deleted"
                ask(client.delete_run, run.info.run_id)
            else:
                tags = [RunTag(schema.REASON, f"ended by sync --reap: {why}")]
                if schema.OUTCOME not in run.data.tags:
                    tags.append(RunTag(schema.OUTCOME, "interrupted"))
                ask(client.log_batch, run.info.run_id, tags=tags)
                ask(client.set_terminated, run.info.run_id, schema.STATUS["interrupted"])
        reaped.append(ReapedRun(run.info.run_id, str(run.info.run_name), ended, why))
    return reaped


def _is_ours(run: Run) -> bool:
    """Made by this project's upload, or by `mlflow run` of a project, perhaps before we started."""
    return any(name.startswith("mlproject.") for name in run.data.tags) or (
        run.data.tags.get("mlflow.source.type") == "PROJECT"
    )


def _judge(run: Run, older_than_s: float | None, *, local: bool) -> tuple[bool, str]:
    """Whether to end the run, and why or why not."""
    host = run.data.tags.get(schema.HOST)
    named = process_named(run.data.tags.get(schema.PROCESS, ""))
    if _is_worked_on(run.info.run_id):
        return False, "a process of this machine works on it"
    if host == this_host():
        if named is not None:
            lives = is_running(*named)
            state = "works on it" if lives else "is gone"
            return not lives, f"process {named[0]} of this machine {state}"
    elif host is None and local:
        if _mlflow_runs_since(run.info.start_time / 1000):
            return False, "an `mlflow run` of that time still works on this machine"
        return True, "no process of this machine works on it"
    where = "an unknown machine" if host is None else "another machine"
    # an upload starts later than the measurement that it brings
    age_s = time.time() - max(run.info.start_time / 1000, named[1] if named else 0.0)
    if older_than_s is not None and age_s > older_than_s:
        return True, f"of {where}, begun {age_s / 3600:.1f} h ago"
    return False, f"of {where}, begun {age_s / 3600:.1f} h ago: --older-than ends it"


def _is_worked_on(run_id: str) -> bool:
    """Whether a process of this machine works for a run that `mlflow run` made."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("MLFLOW_RUN_ID") == run_id:
                return True
        except (psutil.Error, OSError):
            continue
    return False


def _mlflow_runs_since(unix_s: float) -> bool:
    """Whether an `mlflow run` that may have made a run at that time is still at work.

    It makes the run before the environment, and only then starts us with the run's id.
    """
    return any(
        "run" in (words := process.info["cmdline"] or [])
        and any("mlflow" in word for word in words)
        and (process.info["create_time"] or 0.0) < unix_s + _SLACK_S
        for process in psutil.process_iter(["cmdline", "create_time"])
    )
