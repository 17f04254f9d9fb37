"""A real server: Postgres, and MLflow as its operator starts it."""

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import requests
from servers import free_port, postgres_server

from deploy.server.__main__ import healthy
from deploy.server.settings import ServerSettings, checked, read_file, write_settings

PROJECT = Path(__file__).resolve().parents[3]
#: What docs/server.md gives the roles: kind of resource and permission. EDIT deletes nothing.
ROLES = {
    "writer": (("workspace", "USE"), ("experiment", "EDIT")),
    "reader": (("experiment", "READ"),),
}
#: Of users as docs/server.md makes them, and of a stranger without a role.
PASSWORDS = {name: f"{name}-k3u9f8w2n4v7" for name in ("writer", "reader", "stranger")}


@dataclass(frozen=True)
class Server:
    """A running server, its users' passwords, and its process."""

    settings: ServerSettings
    process: subprocess.Popen
    passwords: dict = field(repr=False)

    @property
    def url(self):
        return self.settings.url

    def ask(self, user, method, path, **kwargs):
        """One request as `user`; None is nobody, and a pair is a name with its password."""
        auth = (user, self.passwords[user]) if isinstance(user, str) else user
        return requests.request(method, f"{self.url}{path}", auth=auth, timeout=60, **kwargs)

    def log_in(self, monkeypatch, user, url=None):
        """Give MLflow's client the address and the login, by MLflow's own variables."""
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url or self.url)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", self.passwords[user])


@contextmanager
def own_folder():
    """A folder that the user `postgres` can enter too: pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="mlproject-server-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def settings_in(folder):
    """Write the settings of a server in `folder`, and return them."""
    file = folder / "server.env"
    write_settings(file, "localhost")
    with file.open("a") as more:
        more.write(f"STATE_FOLDER={folder}\nBACKUP_FOLDER={folder}/backups\n")
        more.write(f"MLFLOW_PORT={free_port()}\nPOSTGRES_PORT={free_port()}\n")
    return checked(read_file(file))


def postgres_of(settings):
    return postgres_server(settings.state, settings.postgres_port, settings.postgres_password)


@contextmanager
def running(settings):
    """Start MLflow with these settings, over a Postgres that runs; it has ended afterwards."""
    words = ["--settings", settings.state / "server.env", "start"]
    with (settings.state / "mlflow.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.server", *words], cwd=PROJECT, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 120
        while not healthy(settings):
            assert process.poll() is None, (settings.state / "mlflow.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def make_users(server):
    """Make the roles of docs/server.md, their users, and a stranger without a role, by MLflow."""

    def call(path, **fields):
        answer = server.ask("admin", "POST", f"/api/{path}", json=fields)
        assert answer.ok, answer.text
        return answer.json() if answer.content else {}

    for name, password in PASSWORDS.items():
        call("2.0/mlflow/users/create", username=name, password=password)
    for name, permissions in ROLES.items():
        made = call("3.0/mlflow/roles/create", workspace="default", name=name)["role"]["id"]
        for kind, permission in permissions:
            what = {"resource_type": kind, "resource_pattern": "*", "permission": permission}
            call("3.0/mlflow/roles/permissions/add", role_id=made, **what)
        call("3.0/mlflow/roles/assign", username=name, role_id=made)
