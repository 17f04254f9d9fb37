"""One real server for all tests of this folder, as `make server` starts it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
import requests
from servers import free_port

from bench.errors import UserError
from tracking.server import postgres
from tracking.server.mlflow_process import settings_in
from tracking.server.settings import ServerSettings, new_secret

PROJECT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Server:
    """A running server; `passwords` by user: admin, writer, reader, and stranger without role."""

    settings: ServerSettings
    passwords: dict = field(repr=False)
    said: str
    processes: list

    @property
    def url(self):
        return self.settings.url

    def ask(self, user, method, path, **kwargs):
        """One request as `user`; None is nobody, and a pair is a name with its password."""
        auth = (user, self.passwords[user]) if isinstance(user, str) else user
        return requests.request(method, f"{self.url}{path}", auth=auth, timeout=60, **kwargs)


def look(folder, port):
    """Start what `make server` starts; its output comes line by line."""
    return subprocess.Popen(
        [sys.executable, "-m", "tracking.server", "look", f"--folder={folder}", f"--port={port}"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # as in a terminal: Ctrl-C reaches its process group alone
    )


@pytest.fixture(scope="session")
def postgres_programs():
    try:
        postgres.program("postgres")
    except UserError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def open_folder():
    """A folder that the user `postgres` can enter too: pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="mlproject-server-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


#: What docs/server.md gives the roles: kind of resource and permission. EDIT deletes nothing.
ROLES = {
    "writer": (("workspace", "USE"), ("experiment", "EDIT")),
    "reader": (("experiment", "READ"),),
}


def make_users(server):
    """Make the roles of docs/server.md, their users, and a stranger without a role, by MLflow."""

    def call(path, **fields):
        answer = server.ask("admin", "POST", f"/api/{path}", json=fields)
        assert answer.ok, answer.text
        return answer.json() if answer.content else {}

    for name in ("writer", "reader", "stranger"):
        call("2.0/mlflow/users/create", username=name, password=server.passwords[name])
    for name, permissions in ROLES.items():
        made = call("3.0/mlflow/roles/create", workspace="default", name=name)["role"]["id"]
        for kind, permission in permissions:
            what = {"resource_type": kind, "resource_pattern": "*", "permission": permission}
            call("3.0/mlflow/roles/permissions/add", role_id=made, **what)
        call("3.0/mlflow/roles/assign", username=name, role_id=made)


@pytest.fixture(scope="session")
def server(postgres_programs):
    """The server; Ctrl-C ends it, and nothing of it is left running."""
    folder = Path(tempfile.mkdtemp(prefix="mlproject-server-"))
    folder.chmod(0o755)
    port = free_port()
    process = look(folder, port)
    said = ""
    while "password:" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    started = psutil.Process(process.pid).children(recursive=True)
    postgres_port = int((folder / "postgres" / "postmaster.pid").read_text().splitlines()[3])
    settings = replace(settings_in(folder, port), postgres_port=postgres_port)
    passwords = {name: new_secret() for name in ("writer", "reader", "stranger")}
    try:
        passwords[settings.admin] = settings.admin_password
        made = Server(settings, passwords, said, started)
        make_users(made)
        yield made
    finally:
        os.killpg(process.pid, signal.SIGINT)
        rest = process.communicate(timeout=300)[0]
        shutil.rmtree(folder)
    assert process.returncode == 0, rest
    assert "Traceback" not in rest
    assert not [child for child in started if child.is_running()]


@pytest.fixture
def as_writer(server, monkeypatch):
    """MLflow's client writes to the server, with MLflow's own variables."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "writer")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", server.passwords["writer"])
    return server
