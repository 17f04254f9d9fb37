"""A finished report, brought to the server as a run of its own."""

from __future__ import annotations

import os
from pathlib import Path

from mlflow.entities import RunTag

from tracking import schema
from tracking.patience import AFTER_A_RUN_S, Patience, no_repeats
from tracking.store import experiment_id, open_client, tracking_call
from tracking.upload.owner import owner_tags


@tracking_call
def log_report(
    folder: Path,
    *,
    name: str,
    tags: dict[str, str],
    tracking_uri: str | None = None,
    run_id: str | None = None,
) -> str:
    """Make a finished run of kind `report` with the files of `folder` and return its id.

    A run of that `run_id`, or the one that `mlflow run` made, is used if there is one. Raises
    `TrackingError`.
    """
    client, ask = open_client(tracking_uri), Patience(AFTER_A_RUN_S)
    tags = {schema.KIND: "report", schema.RUN_NAME: name, **tags, **owner_tags()}
    run_id = run_id or os.environ.get("MLFLOW_RUN_ID")
    if run_id is None:
        where = ask(experiment_id, client)
        with no_repeats():
            run_id = client.create_run(where, run_name=name, tags=tags).info.run_id
    else:
        ask(client.log_batch, run_id, tags=[RunTag(*tag) for tag in tags.items()])
    ask(client.log_artifacts, run_id, str(folder), schema.REPORT_ARTIFACTS)
    ask(client.set_terminated, run_id)
    return str(run_id)
