"""The tracking server: reached with MLflow's own settings, given up on in seconds, not minutes."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import mlflow
import requests
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

P = ParamSpec("P")
T = TypeVar("T")

#: A first contact with an SQLite file prints a line per schema migration.
for _noisy in ("mlflow.store.db.utils", "alembic", "alembic.runtime.migration"):
    logging.getLogger(_noisy).setLevel(logging.WARNING)


#: MLflow's own settings wait four minutes for a server that is gone. It reads them at each
#: request; whoever has set them keeps his values.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
#: A bar per downloaded file would bury what a command says.
_QUIET = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
#: `user:password@` of a URI, wherever a message quotes one.
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]*@")


class TrackingError(Exception):
    """The server could not be used; the message is one line and holds no credentials."""


def tracking_call(function: Callable[P, T]) -> Callable[P, T]:
    """Turn everything that a server, its database or the way there can do into `TrackingError`."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (MlflowException, requests.RequestException, SQLAlchemyError, OSError) as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise TrackingError(_CREDENTIALS.sub("", f"{public_uri()}: {line}")[:400]) from error

    return wrapped


def open_client(tracking_uri: str | None = None) -> MlflowClient:
    """Return a client of `tracking_uri`, or of `MLFLOW_TRACKING_URI`, or of the embedded store."""
    for name, value in (_PATIENCE | _QUIET).items():
        os.environ.setdefault(name, value)
    return MlflowClient(tracking_uri=tracking_uri or mlflow.get_tracking_uri())


def public_uri(tracking_uri: str | None = None) -> str:
    """Return the tracking URI without user name, password and query."""
    uri = tracking_uri or str(mlflow.get_tracking_uri())
    return _CREDENTIALS.sub("", uri).partition("?")[0]


def experiment_id(client: MlflowClient) -> str:
    """Return the experiment that MLflow's variables name, made if new; else MLflow's default.

    The same experiment that `mlflow run` uses, so that runs started either way stand together.
    """
    if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return given
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if not name:
        return "0"
    experiment = client.get_experiment_by_name(name)
    return experiment.experiment_id if experiment else str(client.create_experiment(name))
