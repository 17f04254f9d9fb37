"""Whether the tracking server can be used from here."""

from __future__ import annotations

from pathlib import Path

from bench.doctor import Check
from tracking.patience import AFTER_A_RUN_S, http_settings
from tracking.store import TrackingError, open_client, public_uri, tracking_call

_SQLITE = "sqlite:///"


def tracking_checks() -> list[Check]:
    """Ask the tracking server for its experiments.

    An embedded store that does not exist yet is left so: MLflow would make it by being asked.
    """
    where = public_uri()
    if where.startswith(_SQLITE) and not Path(where.removeprefix(_SQLITE)).exists():
        detail = f"{where} will be made by the first tracked run"
        return [Check(name="tracking server", status="ok", detail=detail, remedy=None)]
    try:
        count = _count_experiments()
    except TrackingError as error:
        return [
            Check(
                name="tracking server",
                status="warning",
                detail=str(error),
                remedy="check MLFLOW_TRACKING_URI and the server; records stay on disk meanwhile, "
                "and mlproject sync uploads them",
            )
        ]
    return [
        Check(
            name="tracking server",
            status="ok",
            detail=f"{where} answers, {count} experiments",
            remedy=None,
        )
    ]


@tracking_call
def _count_experiments() -> int:
    with http_settings(AFTER_A_RUN_S):
        return len(open_client().search_experiments())
