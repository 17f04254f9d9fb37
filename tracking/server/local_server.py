"""The plain-host way on this machine for a look: everything in one folder, on localhost only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from bench.errors import UserError
from tracking.server import postgres
from tracking.server.mlflow_process import command, environment, prepare
from tracking.server.settings import ServerSettings, checked, read_file, write_settings

_START_S = 120


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
            _wait_until_it_answers(process, settings, log)
            yield process
        finally:
            _end(process)


def look(folder: Path, port: int) -> None:
    """Run a server until Ctrl-C or SIGTERM; raises UserError if it ends by itself."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    settings = settings_in(folder, port)
    print("starting Postgres and MLflow ...", flush=True)
    with running(settings) as process:
        print(f'MLflow:    {settings.url} (choose "Model training"; Ctrl-C ends it)')
        print(f"user:      {settings.admin}")
        print(f"password:  MLFLOW_AUTH_ADMIN_PASSWORD in {folder / 'server.env'}", flush=True)
        while not ended.wait(timeout=1):
            if process.poll() is not None:
                raise UserError(f"MLflow ended by itself: {folder / 'mlflow.log'} says why")
    print("ended; its runs stay in", folder)


def _wait_until_it_answers(
    process: subprocess.Popen[bytes], settings: ServerSettings, log: Path
) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if requests.get(f"{settings.url}/health", timeout=2).ok:
                return
        except requests.RequestException:
            time.sleep(0.1)
    raise UserError(f"MLflow does not answer: {log} says why")


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
