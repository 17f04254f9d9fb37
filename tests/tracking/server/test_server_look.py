"""`make server`: a server for a look, on this machine alone; the fixture checks that it ends."""

import re
import socket

import psutil
import pytest
from conftest import look

from bench.errors import UserError
from tracking.server import postgres
from tracking.server.settings import SECRETS, read_file


@pytest.mark.slow
def test_it_says_where_it_is_shows_no_secret_and_is_reached_from_here_alone(server):
    folder = server.settings.state
    assert server.url in server.said
    assert str(folder / "server.env") in server.said
    page = "/api/2.0/mlflow/experiments/get?experiment_id=0"
    assert server.ask("admin", "GET", page).status_code == 200
    assert server.ask(None, "GET", page).status_code == 401
    listening = {
        connection.laddr.ip
        for process in server.processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    assert len([child for child in server.processes if "postgres" in child.name()]) > 1
    settings = read_file(folder / "server.env")
    for secret in SECRETS:
        assert settings[secret] not in server.said
        assert not any(settings[secret] in " ".join(one.cmdline()) for one in server.processes)


def test_without_postgres_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(postgres, "_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no postgres here: install .*apt-get install postgresql"):
        postgres.program("postgres")


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = look(tmp_path, port)
        said = process.communicate(timeout=300)[0]
    assert process.returncode == 2
    assert re.search(rf"error: port {port} is taken: `make server SERVER_PORT=", said)
    assert not (tmp_path / "postgres").exists()
