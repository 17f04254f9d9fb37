"""The files that others read: compose, systemd, Docker, the settings that all of them share."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from programs import complaints, installed_tool, program

from tracking.server.settings import SECRETS, checked, read_file, write_settings

PROJECT = Path(__file__).resolve().parents[3]
SERVER = PROJECT / "tracking" / "server"
DEPLOY = PROJECT / "deploy" / "server"


def compose(tmp_path, settings_file):
    """What a compose program makes of compose.yaml; no container is started."""
    # podman-compose asks podman for its version before it reads anything
    program(tmp_path, "podman", "echo podman version 5.0.0")
    return subprocess.run(
        [
            *(installed_tool("podman-compose"), "--env-file", str(settings_file)),
            *("-f", str(DEPLOY / "compose.yaml"), "config"),
        ],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """The services that compose makes of a settings file, and what the file says."""
    folder = tmp_path_factory.mktemp("compose")
    write_settings(folder / "server.env", "mlflow.lab.org")
    done = compose(folder, folder / "server.env")
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["services"], checked(read_file(folder / "server.env"))


@pytest.fixture
def services(composed):
    return composed[0]


def test_containers_get_the_settings_that_a_plain_host_gets(composed):
    services, outside = composed
    inside = checked(services["mlflow"]["environment"])
    assert inside.admin_password == outside.admin_password
    assert inside.artifacts == outside.artifacts
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == outside.postgres_password
    assert services["proxy"]["environment"]["SERVER_NAME"] == outside.name


def test_only_the_proxy_is_reached_from_outside_and_knows_no_secret(services):
    published = {name: service.get("ports") for name, service in services.items()}
    assert {name for name, ports in published.items() if ports} == {"proxy"}
    assert [str(port).split(":")[0] for port in published["proxy"]] == ["80", "443", "443"]
    assert not set(services["proxy"]["environment"]) & set(SECRETS)
    assert set(services["postgres"]["environment"]) & set(SECRETS) == {"POSTGRES_PASSWORD"}


def test_images_are_pinned_and_the_database_is_no_newer_than_its_tools(services):
    for service in services.values():
        if "image" in service:
            assert re.search(r":\d+\.\d+[\d.]*-[a-z]+$", service["image"])
    [base] = re.findall(r"^FROM (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-trixie", base)
    assert re.fullmatch(r"postgres:17\..*", services["postgres"]["image"])  # trixie's pg_dump


@pytest.mark.slow
def test_compose_refuses_a_file_without_a_name_or_a_password(tmp_path):
    file = tmp_path / "server.env"
    write_settings(file, "mlflow.lab.org")
    lines = file.read_text().splitlines()
    for name in ("SERVER_NAME", "POSTGRES_PASSWORD"):
        file.write_text("\n".join(line for line in lines if not line.startswith(name)))
        done = compose(tmp_path, file)
        assert done.returncode != 0
        assert name in done.stderr


def test_hadolint_is_content():
    text = (DEPLOY / "Dockerfile").read_text()
    assert complaints("hadolint", "--no-color", text=text) == ""


def test_every_way_starts_the_same_program():
    """The one that refuses weak secrets: nobody calls `mlflow server` by himself."""
    assert 'ENTRYPOINT ["python", "-m", "tracking.server"]' in (DEPLOY / "Dockerfile").read_text()
    for file in DEPLOY.iterdir():
        assert "mlflow server" not in file.read_text(), file


def test_a_server_needs_nothing_of_mlproject_but_what_its_image_copies(tmp_path):
    copied = [*SERVER.glob("*.py"), PROJECT / "bench" / "errors.py"]
    copied += [PROJECT / "bench" / "__init__.py", PROJECT / "tracking" / "__init__.py"]
    for file in copied:
        there = tmp_path / file.relative_to(PROJECT)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)
    modules = [f"tracking.server.{file.stem}" for file in SERVER.glob("*.py")]
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\nimport {', '.join(modules)}"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "COPY bench/__init__.py bench/errors.py bench/" in (DEPLOY / "Dockerfile").read_text()


def test_the_servers_packages_are_those_that_the_tests_run_and_settings_are_kept_out():
    pins = [
        re.findall(r"^mlflow==(\S+)$", file.read_text(), re.MULTILINE)
        for file in (DEPLOY / "requirements.txt", PROJECT / "requirements.txt")
    ]
    assert pins[0] == pins[1]
    assert "server.env" in (PROJECT / ".gitignore").read_text().split()
    ignored = (PROJECT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    assert "**/server.env" in ignored
