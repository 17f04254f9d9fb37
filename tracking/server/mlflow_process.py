"""How the MLflow server is started: one command and one environment for every way of running it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from tracking.server.settings import ADMIN_PASSWORD, ServerSettings

#: Role and database of Postgres.
POSTGRES_NAME = "mlflow"

#: With workspaces on, MLflow gives nothing to users without a role, and lets only members create
#: experiments; without them every user may create some. One worker process: with more, uvicorn
#: adds 40 ms to each request. Passwords are checked once a minute: each check takes 0.2 s.
_AUTH = """\
[mlflow]
database_uri = {database}
default_permission = NO_PERMISSIONS
grant_default_workspace_access = false
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
"""


def database_uri(settings: ServerSettings) -> str:
    """Return the address of the database; the password goes by `PGPASSWORD`, never in here."""
    place = f"{settings.postgres_host}:{settings.postgres_port}"
    return f"postgresql+psycopg://{POSTGRES_NAME}@{place}/{POSTGRES_NAME}"


def command(settings: ServerSettings) -> list[str]:
    """Return the server's command line, which every user of the machine can read: no secrets."""
    return [
        *(sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth"),
        *("--host", settings.bind, "--port", str(settings.port), "--workers", "1"),
        *("--backend-store-uri", database_uri(settings)),
        *("--artifacts-destination", settings.artifacts),
        *("--allowed-hosts", ",".join(_hosts(settings))),
        *("--cors-allowed-origins", f"https://{settings.name}"),
    ]


#: With MLflow's own 15 connections, 32 clients at once make it answer 400 (`QueuePool limit`). Runs
#: and users have a pool each; Postgres takes 100 connections by default.
_POOL = {
    "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "20",
    "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "20",
}


def environment(settings: ServerSettings, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the server's environment: `given`, the secrets, and MLflow's switches."""
    return {
        # compose passes what the settings file leaves out as empty; MLflow takes that for a value
        **{name: value for name, value in given.items() if value},
        "PGPASSWORD": settings.postgres_password,
        "MLFLOW_AUTH_ADMIN_USERNAME": settings.admin,
        ADMIN_PASSWORD: settings.admin_password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": settings.flask_key,
        "MLFLOW_AUTH_CONFIG_PATH": str(settings.state / "basic_auth.ini"),
        "MLFLOW_ENABLE_WORKSPACES": "true",
        "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **_POOL,
    }


def prepare(settings: ServerSettings) -> None:
    """Write MLflow's own settings of who may do what, and make the folder of the artifacts."""
    settings.state.mkdir(parents=True, exist_ok=True)
    content = _AUTH.format(database=database_uri(settings))
    (settings.state / "basic_auth.ini").write_text(content, encoding="utf-8")
    if settings.artifacts_folder is not None:
        settings.artifacts_folder.mkdir(parents=True, exist_ok=True)


def _hosts(settings: ServerSettings) -> list[str]:
    """The `Host:` headers answered, compared whole: the proxy's without port, and our own."""
    return [settings.name, *(f"{host}:{settings.port}" for host in ("127.0.0.1", "localhost"))]
