"""A real MLflow server, and a real Postgres, in processes of their own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import requests


def program(name):
    """The path of a program of Postgres, of the newest where Debian keeps them off the path."""
    files = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    return max(files, key=lambda file: float(file.parts[4]), default=name)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def mlflow_server(folder, database=None, **settings):
    """Yield the URI of a server over `database`, or SQLite in `folder`, until the block ends."""
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
                *("--port", str(port), "--workers", "1"),
                *("--backend-store-uri", database or f"sqlite:///{folder}/server.db"),
                *("--artifacts-destination", str(folder / "artifacts")),
            ],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **settings},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_until_it_answers(process, uri, folder / "server.log")
            yield uri
        finally:
            os.killpg(process.pid, 15)
            process.wait(timeout=300)


def wait_until_it_answers(process, uri, log, verify=True):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}")
        try:
            if requests.get(f"{uri}/health", timeout=2, verify=verify).ok:
                return
        except OSError:  # of requests too; and the certificate may not be there yet
            time.sleep(0.1)
    raise RuntimeError(f"the server does not answer: {log.read_text()[-2000:]}")


@contextmanager
def postgres_server(folder, port, password):
    """Run a Postgres in `folder`, with a database `mlflow`, on 127.0.0.1 until the block ends.

    Root runs it as the user `postgres`, who must be able to enter `folder`.
    """
    data, first = folder / "postgres", folder / "postgres.first"
    name = "postgres" if os.geteuid() == 0 else None
    owner = {"cwd": "/", "user": name, "group": name, "extra_groups": [] if name else None}
    where = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "mlflow", "PGPASSWORD": password}
    made = (data / "PG_VERSION").exists()
    if not made:
        data.mkdir()
        first.write_text(password)
        for path in (data, first) if name else ():
            shutil.chown(path, name, name)
        words = ["-D", data, "-U", "mlflow", "-E", "UTF8", "--locale=C", "--auth=scram-sha-256"]
        make = [program("initdb"), *words, f"--pwfile={first}"]
        subprocess.run(make, check=True, capture_output=True, **owner)
    words = ["-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    words += ["-c", "unix_socket_directories="]  # the owner may not be able to write to it
    with (folder / "postgres.log").open("ab") as log:
        process = subprocess.Popen([program("postgres"), *words], stdout=log, stderr=log, **owner)
    try:
        deadline = time.monotonic() + 120
        while subprocess.run([program("pg_isready"), "-q"], env=os.environ | where).returncode:
            assert process.poll() is None, (folder / "postgres.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if not made:
            subprocess.run([program("createdb"), "mlflow"], env=os.environ | where, check=True)
        yield
    finally:
        process.send_signal(signal.SIGINT)  # fast: it lets no client keep it up
        process.wait(timeout=60)
