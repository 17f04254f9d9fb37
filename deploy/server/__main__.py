"""`python -m deploy.server`: what the operator of a server types; `docs/server.md`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import requests

from deploy.server import backup as backups
from deploy.server.settings import (
    ADMIN_PASSWORD,
    ServerSettings,
    checked,
    read_file,
    write_settings,
)

#: With workspaces on, MLflow gives nothing to users without a role, and lets only members create
#: experiments; without them every user may create some. Passwords are checked once a minute: each
#: check takes 0.2 s.
_AUTH = """\
[mlflow]
database_uri = {database}
default_permission = NO_PERMISSIONS
grant_default_workspace_access = false
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
"""


@click.group(context_settings={"max_content_width": 100})
@click.option(
    "--settings",
    "file",
    type=click.Path(path_type=Path),
    help="The settings file; without it the environment holds the settings.",
)
@click.pass_context
def server(context: click.Context, file: Path | None) -> None:
    """Run and look after the shared tracking server."""
    context.obj = file


def _settings(context: click.Context) -> ServerSettings:
    file: Path | None = context.obj
    return checked({**os.environ, **(read_file(file) if file else {})})


@server.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
def settings(name: str, file: Path) -> None:
    """Write a settings FILE for the public DNS name NAME, with secrets made for it."""
    write_settings(file, name)
    click.echo(f"{file}: written, with secrets; the admin's password is in it")


@server.command()
@click.pass_context
def check(context: click.Context) -> None:
    """Say whether a server would start with these settings (exit 2 if not)."""
    click.echo(f"settings of {_settings(context).name}: good")


@server.command()
@click.pass_context
def start(context: click.Context) -> None:
    """Become the MLflow server, if the settings are good."""
    settings = _settings(context)
    settings.state.mkdir(parents=True, exist_ok=True)
    auth = _AUTH.format(database=settings.database_uri)
    (settings.state / "basic_auth.ini").write_text(auth, encoding="utf-8")
    if settings.artifacts_folder is not None:
        settings.artifacts_folder.mkdir(parents=True, exist_ok=True)
    words = command(settings)
    os.execvpe(words[0], words, environment(settings))  # noqa: S606


@server.command()
@click.pass_context
def health(context: click.Context) -> None:
    """Say whether the server and its database answer (exit 1 if not)."""
    good = healthy(_settings(context))
    click.echo("healthy" if good else "unhealthy: no answer to the admin of the settings")
    sys.exit(0 if good else 1)


@server.command()
@click.pass_context
def backup(context: click.Context) -> None:
    """Write the database and the artifacts to a new folder under BACKUP_FOLDER."""
    click.echo(backups.back_up(_settings(context)))


@server.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--replace", is_flag=True, help="Even if the server holds runs already.")
@click.pass_context
def restore(context: click.Context, folder: Path, replace: bool) -> None:
    """Bring the back-up in FOLDER to the server, which must be stopped."""
    backups.restore(_settings(context), folder, replace=replace)
    click.echo("restored; start the server again")


@server.command()
@click.pass_context
def upgrade(context: click.Context) -> None:
    """Bring the tables to what this MLflow needs, with the server stopped and backed up."""
    settings = _settings(context)
    words = [sys.executable, "-m", "mlflow", "db", "upgrade", settings.database_uri]
    sys.exit(subprocess.run(words, env=environment(settings)).returncode)


def command(settings: ServerSettings) -> list[str]:
    """Return the server's command line, which every user of the machine can read: no secrets.

    One worker process: with more, uvicorn adds 40 ms to each request.
    """
    # the `Host:` headers answered, compared whole: the proxy's without port, and our own
    hosts = [settings.name, *(f"{host}:{settings.port}" for host in ("127.0.0.1", "localhost"))]
    return [
        *(sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth"),
        *("--host", settings.bind, "--port", str(settings.port), "--workers", "1"),
        *("--backend-store-uri", settings.database_uri),
        *("--artifacts-destination", settings.artifacts),
        *("--allowed-hosts", ",".join(hosts)),
        *("--cors-allowed-origins", f"https://{settings.name}"),
    ]


def environment(settings: ServerSettings) -> dict[str, str]:
    """Return the server's environment: this process's, the secrets, and MLflow's switches."""
    return {
        # compose passes what the settings file leaves out as empty; MLflow takes that for a value
        **{name: value for name, value in os.environ.items() if value},
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
        # With MLflow's own 15 connections, 32 clients at once make it answer 400 (`QueuePool
        # limit`). Runs and users have a pool each; Postgres takes 100 connections by default.
        "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "20",
        "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "20",
    }


def healthy(settings: ServerSettings) -> bool:
    """Whether the server answers, and its database, to the admin."""
    with requests.Session() as session:
        session.trust_env = False  # no .netrc, no proxy: it is this machine
        session.auth = (settings.admin, settings.admin_password)
        asked = f"{settings.url}/api/2.0/mlflow/experiments/get?experiment_id=0"
        try:
            return session.get(asked, timeout=9).status_code == 200
        except requests.RequestException:
            return False


if __name__ == "__main__":
    server(prog_name="python -m deploy.server")
