"""`python -m tracking.server`: what the operator of a server types; `docs/server.md`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from bench.errors import UserError
from tracking.server import backup as backups
from tracking.server import mlflow_process
from tracking.server.settings import ServerSettings, checked, read_file, write_settings


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
    mlflow_process.prepare(settings)
    words = mlflow_process.command(settings)
    os.execvpe(words[0], words, mlflow_process.environment(settings))  # noqa: S606


@server.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("data/server"))
@click.option("--port", type=click.IntRange(1, 65535), default=5002)
def look(folder: Path, port: int) -> None:
    """Run Postgres and MLflow on this machine, on localhost only, until Ctrl-C."""
    mlflow_process.look(folder, port)


@server.command()
@click.pass_context
def health(context: click.Context) -> None:
    """Say whether the server and its database answer (exit 1 if not)."""
    good = mlflow_process.healthy(_settings(context))
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
    database = mlflow_process.database_uri(settings)
    words = [sys.executable, "-m", "mlflow", "db", "upgrade", database]
    sys.exit(subprocess.run(words, env=mlflow_process.environment(settings)).returncode)


if __name__ == "__main__":
    try:
        server(prog_name="python -m tracking.server")
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
