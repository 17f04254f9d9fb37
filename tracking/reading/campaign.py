"""A campaign on the tracking server: which of its runs are there, and the run that started it."""

from __future__ import annotations

import os
from typing import cast

from mlflow.entities import Param, RunTag

from bench.config import RunConfig, parse_config
from bench.errors import UserError
from bench.records import Outcome
from campaigns.sweep.past_run import PastRun
from tracking import schema
from tracking.patience import AFTER_A_RUN_S, Patience
from tracking.reading.search import TrackedRun, search_runs
from tracking.store import open_client, tracking_call
from tracking.upload.owner import owner_tags


def campaign_runs(campaign: str) -> list[PastRun]:
    """Return the campaign's whole measurements on the server, oldest first, of every machine.

    Raises `TrackingError`.
    """
    wanted = f"tags.`{schema.CAMPAIGN}` = '{campaign}' AND tags.`{schema.UPLOADED}` = 'true'"
    found = [
        past
        for run in search_runs(f"{wanted} AND tags.`{schema.KIND}` = 'measurement'")
        if (past := _past_run(run)) is not None
    ]
    return sorted(found, key=lambda past: past.record_id)


@tracking_call
def take_project_run(campaign: str, params: dict[str, str], kind: str = "sweep") -> str | None:
    """Make the run that `mlflow run` made for this process the sweep's own, and return its id.

    From then on every record gets a run of its own, as in a sweep started without MLflow. None
    where MLflow made no run.
    """
    run_id = os.environ.pop("MLFLOW_RUN_ID", None)
    if run_id is None:
        return None
    client, ask = open_client(), Patience(AFTER_A_RUN_S)
    os.environ["MLFLOW_EXPERIMENT_ID"] = ask(client.get_run, run_id).info.experiment_id
    tags = {schema.KIND: kind, schema.CAMPAIGN: campaign, schema.RUN_NAME: f"{campaign}_{kind}"}
    ask(
        client.log_batch,
        run_id,
        params=[Param(*pair) for pair in params.items()],
        tags=[RunTag(*pair) for pair in {**tags, **owner_tags()}.items()],
    )
    return run_id


@tracking_call
def end_project_run(run_id: str, note: str, *, status: str) -> None:
    """End the sweep's own run with the table of its results as description."""
    client, ask = open_client(), Patience(AFTER_A_RUN_S)
    ask(client.set_tag, run_id, schema.NOTE, note)
    ask(client.set_terminated, run_id, status)


def _past_run(run: TrackedRun) -> PastRun | None:
    """What a sweep needs to know of a run; None for one that another version wrote."""
    given = {name: run.params[name] for name in RunConfig.model_fields if name in run.params}
    try:
        config = parse_config(given)
    except UserError:
        return None
    if config.config_id != run.tags.get(schema.CONFIG_ID):
        return None
    outcome = run.tags.get(schema.OUTCOME)
    if outcome not in schema.STATUS:
        return None
    return PastRun(
        config=config,
        environment_id=run.tags.get(schema.ENVIRONMENT_ID),
        outcome=cast(Outcome, outcome),
        reason=run.tags.get(schema.REASON),
        record_id=run.tags[schema.RECORD_ID],
        device=run.tags.get(schema.DEVICE),
    )
