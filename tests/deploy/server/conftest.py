"""One real server for all tests of this folder."""

import pytest
from operated import PASSWORDS, Server, make_users, own_folder, postgres_of, running, settings_in

from deploy.server.settings import SECRETS, read_file


@pytest.fixture(scope="session")
def server():
    with own_folder() as folder:
        settings = settings_in(folder)
        with postgres_of(settings), running(settings) as process:
            made = Server(settings, process, PASSWORDS | {"admin": settings.admin_password})
            make_users(made)
            yield made
            log = (folder / "mlflow.log").read_text()
        secrets = [read_file(folder / "server.env")[name] for name in SECRETS]
        assert not [secret for secret in (*secrets, *PASSWORDS.values()) if secret in log]


@pytest.fixture
def as_writer(server, monkeypatch):
    """MLflow's client writes to the server, with MLflow's own variables."""
    server.log_in(monkeypatch, "writer")
    return server
