"""`make server`: a server for a look, of which nothing is left running."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import requests
from conftest import free_local_port

from tracking.server.settings import SECRETS, read_file

PROJECT = Path(__file__).resolve().parents[3]


def look(folder, port, **changes):
    """Start what `make server` starts; its output comes line by line."""
    return subprocess.Popen(
        [sys.executable, "-m", "tracking.server", "look", f"--folder={folder}", f"--port={port}"],
        cwd=PROJECT,
        env={**os.environ, **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # as in a terminal: Ctrl-C reaches its process group alone
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C of a Windows console")
def test_it_says_where_it_is_and_leaves_nothing_behind(open_folder, postgres_programs):
    port = free_local_port()
    process = look(open_folder, port)
    said = ""
    while "password:" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    settings = read_file(open_folder / "server.env")
    started = psutil.Process(process.pid).children(recursive=True)
    command_lines = [" ".join(child.cmdline()) for child in started]
    environment_of_postgres = [child for child in started if "postgres" in child.name()]

    assert f"http://127.0.0.1:{port}" in said
    assert str(open_folder / "server.env") in said
    login = ("admin", settings["MLFLOW_AUTH_ADMIN_PASSWORD"])
    page = f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/get?experiment_id=0"
    assert requests.get(page, auth=login, timeout=30).status_code == 200
    assert requests.get(page, timeout=30).status_code == 401
    assert {address.laddr.ip for address in listening(started)} == {"127.0.0.1"}
    assert len(environment_of_postgres) > 1
    for secret in SECRETS:
        assert settings[secret] not in said
        assert not any(settings[secret] in line for line in command_lines)

    os.killpg(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert not [child for child in started if child.is_running()]


def listening(processes):
    return [
        connection
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_without_postgres_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    from bench.errors import UserError
    from tracking.server import postgres

    monkeypatch.setattr(postgres, "_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no postgres here: install .*apt-get install postgresql"):
        postgres.program("postgres")


def test_a_port_in_use_is_named(open_folder, postgres_programs):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = look(open_folder, port)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 2
    assert re.search(rf"error: port {port} is taken: `make server SERVER_PORT=", said)
    assert not (open_folder / "postgres").exists()
