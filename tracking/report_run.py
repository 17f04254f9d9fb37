"""A finished report, brought to the server as a run of its own."""

from __future__ import annotations

import os
from pathlib import Path

from tracking import schema
from tracking.store import experiment_id, open_client, tracking_call


@tracking_call
def log_report(
    folder: Path, *, name: str, tags: dict[str, str], tracking_uri: str | None = None
) -> str:
    """Make a finished run of kind `report` with the files of `folder` and return its id.

    Under `mlflow run` the run that MLflow made is used. Raises `TrackingError`.
    """
    client = open_client(tracking_uri)
    own = os.environ.get("MLFLOW_RUN_ID")
    run_id = own or client.create_run(experiment_id(client), run_name=name).info.run_id
    for key, value in {schema.KIND: "report", schema.RUN_NAME: name, **tags}.items():
        client.set_tag(run_id, key, value)
    client.log_artifacts(run_id, str(folder), schema.REPORT_ARTIFACTS)
    client.set_terminated(run_id)
    return str(run_id)
