"""One real server for all tests of this folder: Postgres, MLflow, a user of each kind."""

import shutil
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from bench.errors import UserError
from tracking.server import mlflow_process, postgres
from tracking.server.settings import ServerSettings, new_secret
from tracking.server.users import Users


@dataclass(frozen=True)
class Server:
    """A running server; `passwords` by user: admin, writer, reader, and stranger without role."""

    settings: ServerSettings
    passwords: dict = field(repr=False)

    @property
    def url(self):
        return self.settings.url

    def ask(self, user, method, path, **kwargs):
        """One request as `user`; None is nobody, and a pair is a name with its password."""
        auth = (user, self.passwords[user]) if isinstance(user, str) else user
        return requests.request(method, f"{self.url}{path}", auth=auth, timeout=60, **kwargs)


def free_local_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def postgres_programs():
    try:
        postgres.program("postgres")
    except UserError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def open_folder():
    """A folder that the user `postgres` can enter too: pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="mlproject-server-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def server(postgres_programs):
    folder = Path(tempfile.mkdtemp(prefix="mlproject-server-"))
    folder.chmod(0o755)
    settings = mlflow_process.settings_in(folder, free_local_port())
    passwords = {name: new_secret() for name in ("writer", "reader", "stranger")}
    with mlflow_process.running(settings):
        users = Users(settings)
        users.add("writer", passwords["writer"], "writer")
        users.add("reader", passwords["reader"], "reader")
        users.add("stranger", passwords["stranger"], "reader")
        users.take_role("stranger")
        yield Server(settings, {settings.admin: settings.admin_password, **passwords})
    shutil.rmtree(folder)


@pytest.fixture
def as_writer(server, monkeypatch):
    """MLflow's client writes to the server, with MLflow's own variables."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "writer")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", server.passwords["writer"])
    return server
