"""A tracked run as plain values, for packages that do not know MLflow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from mlflow.entities import Run


@dataclass(frozen=True)
class TrackedRun:
    """A run as the server tells it; metrics hold each key's last value."""

    run_id: str
    name: str
    status: str
    start_time: datetime  # UTC
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    artifact_uri: str


def tracked(run: Run) -> TrackedRun:
    """Return MLflow's run as plain values."""
    return TrackedRun(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id,
        status=run.info.status,
        start_time=datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc),
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
        artifact_uri=run.info.artifact_uri,
    )
