"""The MLflow server: one command and environment for every way of running it; and a local one.

The local one, for a look, has its Postgres with it: everything in one folder, on localhost only.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import requests

from bench.errors import UserError
from tracking.server import postgres
from tracking.server.settings import (
    ADMIN_PASSWORD,
    POSTGRES_NAME,
    ServerSettings,
    checked,
    read_file,
    write_settings,
)

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
    # the `Host:` headers answered, compared whole: the proxy's without port, and our own
    hosts = [settings.name, *(f"{host}:{settings.port}" for host in ("127.0.0.1", "localhost"))]
    return [
        *(sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth"),
        *("--host", settings.bind, "--port", str(settings.port), "--workers", "1"),
        *("--backend-store-uri", database_uri(settings)),
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


def prepare(settings: ServerSettings) -> None:
    """Write MLflow's own settings of who may do what, and make the folder of the artifacts."""
    settings.state.mkdir(parents=True, exist_ok=True)
    content = _AUTH.format(database=database_uri(settings))
    (settings.state / "basic_auth.ini").write_text(content, encoding="utf-8")
    if settings.artifacts_folder is not None:
        settings.artifacts_folder.mkdir(parents=True, exist_ok=True)


# A local one


def settings_in(folder: Path, port: int) -> ServerSettings:
    """Return the settings of the server in `folder`, with secrets made at the first time."""
    file = folder / "server.env"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_settings(file, "localhost")
    place = {
        "STATE_FOLDER": str(folder.resolve()),
        "BACKUP_FOLDER": str(folder.resolve() / "backups"),
        "MLFLOW_PORT": str(port),
        "POSTGRES_PORT": str(_free_port()),
    }
    return checked(read_file(file) | place)


@contextmanager
def running(settings: ServerSettings) -> Iterator[subprocess.Popen[bytes]]:
    """Run Postgres and MLflow with these settings until the block ends; yields when it answers."""
    folder = settings.state
    _refuse_taken(settings.port)
    with postgres.running(folder, settings.postgres_port, settings.postgres_password):
        prepare(settings)
        log = folder / "mlflow.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command(settings),
                env=environment(settings),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            # 401: somebody changed the admin's password on MLflow's page
            postgres.wait_until(lambda: _answer(settings) in (200, 401), process, log)
            yield process
        finally:
            _end(process)


def look(folder: Path, port: int) -> None:
    """Run a server until Ctrl-C or SIGTERM; raises UserError if it ends by itself."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = settings_in(folder, port)
    print("starting Postgres and MLflow ...", flush=True)
    try:
        with running(settings) as process:
            print(f'MLflow:    {settings.url} (choose "Model training"; Ctrl-C ends it)')
            print(f"user:      {settings.admin}")
            print(f"password:  MLFLOW_AUTH_ADMIN_PASSWORD in {folder / 'server.env'}", flush=True)
            process.wait()
            raise UserError(f"MLflow ended by itself: {folder / 'mlflow.log'} says why")
    except KeyboardInterrupt:
        print("ended; its runs stay in", folder)


def healthy(settings: ServerSettings) -> bool:
    """Whether the server answers, and its database, to the admin."""
    return _answer(settings) == 200


def _answer(settings: ServerSettings) -> int | None:
    with requests.Session() as session:
        session.trust_env = False  # no .netrc, no proxy: it is this machine
        session.auth = (settings.admin, settings.admin_password)
        asked = f"{settings.url}/api/2.0/mlflow/experiments/get?experiment_id=0"
        with suppress(requests.RequestException):
            return int(session.get(asked, timeout=9).status_code)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its children: they are one process group."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=15)
    except ProcessLookupError:
        return
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"port {port} is taken: `make server SERVER_PORT=5003`") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
