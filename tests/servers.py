"""A real MLflow server in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import requests


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
