"""What a server does not start with, in one line that shows no value; and the files for all."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from operated import PROJECT
from programs import complaints, installed_tool, program
from refusals import refusal

from deploy.server.__main__ import server
from deploy.server.settings import SECRETS, Refused, checked, read_file, write_settings

DEPLOY = PROJECT / "deploy" / "server"
GOOD = {"SERVER_NAME": "mlflow.lab.org"}
GOOD |= {name: f"k3u9f8w2n4v7x1z{number}" for number, name in enumerate(SECRETS)}


def refused(**changes):
    return refusal(checked, GOOD | changes, error=Refused)


def test_good_settings_are_taken_with_defaults_and_show_no_secret_when_printed():
    settings = checked(GOOD | {"MLFLOW_PORT": ""})  # as compose passes what its file leaves out
    assert (settings.admin_password, settings.port) == (GOOD["MLFLOW_AUTH_ADMIN_PASSWORD"], 5000)
    assert str(settings.artifacts_folder) == "/var/lib/mlproject-server/artifacts"
    assert settings.state == Path("/var/lib/mlproject-server")
    assert settings.backups == Path("/var/backups/mlproject-server")
    assert checked(GOOD | {"STATE_FOLDER": "/srv"}).artifacts == "/srv/artifacts"
    assert checked(GOOD | {"ARTIFACTS": "s3://runs/here"}).artifacts_folder is None
    assert not any(GOOD[name] in f"{settings!r} {settings}" for name in SECRETS)


@pytest.mark.parametrize(
    ("weak", "why"),
    [
        ("", "is missing"),
        ("k3u9f8w2n4v7x1z", "has 15 characters"),
        ("aaaaaaaaaaaaaaaaaaaaaaaa", "repeats few characters"),
        ("abcabcabcabcabcabcabcabc", "repeats few characters"),
        ("changeme-changeme-1", "is or holds a placeholder"),
        ("CHANGE_ME_PLEASE_2026", "is or holds a placeholder"),
        ("p4ssw0rd-of-the-server", "is or holds a placeholder"),
        ("1234567890abcdefghij", "is or holds a placeholder"),
    ],
)
def test_a_weak_secret_is_refused(weak, why):
    for name in SECRETS:
        message = refused(**{name: weak})
        assert f"{name} {why}" in message
        assert not weak or weak not in message


def test_no_two_secrets_are_the_same_and_everything_wrong_is_said_at_once():
    for first, second in itertools.combinations(SECRETS, 2):
        message = refused(**{first: GOOD[second]})
        assert f"{second} is the same as {first}" in message
        assert GOOD[second] not in message
    message = refused(**dict.fromkeys(SECRETS, ""), SERVER_NAME="", MLFLOW_PORT="0")
    assert all(f"{name} is " in message for name in (*SECRETS, "SERVER_NAME", "MLFLOW_PORT"))


WRONG = {
    "SERVER_NAME": (
        "*",
        "*.lab.org",
        "https://mlflow.lab.org",
        "lab.org\nevil",
        "lab.org\n",
        "a..b",
    ),
    "MLFLOW_PORT": ("http", "65536"),
    "POSTGRES_PORT": ("-1", "0"),
    "BACKUPS_KEPT": ("0",),
    "MAX_UPLOAD": ("lots", "2GB more"),
    "MAX_REQUESTS": ("0",),
    "ARTIFACTS": ("somewhere", "http://bucket"),
}


@pytest.mark.parametrize(("name", "values"), WRONG.items())
def test_a_wrong_value_is_named(name, values):
    for value in values:
        assert f"{name} is {value!r}: " in refused(**{name: value})


@pytest.mark.parametrize("subcommand", ["check", "start", "backup", "health"])
def test_every_command_refuses_in_one_line_that_shows_no_value(subcommand, monkeypatch):
    for name, value in (GOOD | {"POSTGRES_PASSWORD": "changeme"}).items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(server, [subcommand])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "POSTGRES_PASSWORD has 8 characters" in done.stderr
    assert "changeme" not in done.stderr


# The file


@pytest.fixture
def file(tmp_path):
    return tmp_path / "server.env"


def test_a_written_file_is_good_its_owners_alone_and_never_written_over(file):
    assert "no name of a server" in refusal(write_settings, file, "Bad Name!*", error=Refused)
    assert not file.exists()
    write_settings(file, "MLflow.Lab.org")
    before = file.read_text()
    assert checked(read_file(file)).name == "mlflow.lab.org"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "exists" in refusal(write_settings, file, "mlflow.lab.org", error=Refused)
    assert file.read_text() == before


def test_a_line_that_others_would_read_differently_or_not_at_all_is_named(file):
    for value in ('"quoted"', "'quoted'", "two words", "$HOME", "a#b", "back\\"):
        file.write_text(f"# mine\n\nPOSTGRES_PASSWORD={value}\n")
        message = refusal(read_file, file, error=Refused)
        assert "line 3: POSTGRES_PASSWORD" in message
        assert value not in message
    for line in ("export A=1", "A: 1", "a=1", "=1", "words"):
        file.write_text(line + "\n")
        assert "line 1: not NAME=value" in refusal(read_file, file, error=Refused)


def test_the_example_names_every_setting_and_gives_no_secret():
    example = DEPLOY / "server.env.example"
    given = read_file(example)
    assert not any(given[name] for name in SECRETS)
    for name in re.findall(r"^#?([A-Z_0-9]+)=", example.read_text(), re.MULTILINE):
        if not name.startswith(("AWS_", "MLFLOW_S3_")):  # their own libraries read them
            readers = (DEPLOY / "settings.py", DEPLOY / "compose.yaml")
            assert all(name in reader.read_text() for reader in readers), name


# The files of the containers


def compose(tmp_path, settings_file):
    """What a compose program makes of compose.yaml; no container is started."""
    # podman-compose asks podman for its version before it reads anything
    program(tmp_path, "podman", "echo podman version 5.0.0")
    words = ("--env-file", str(settings_file), "-f", str(DEPLOY / "compose.yaml"), "config")
    return subprocess.run(
        [installed_tool("podman-compose"), *words],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )


def test_containers_get_the_settings_of_a_plain_host_and_the_proxy_alone_is_reached(file, tmp_path):
    write_settings(file, "mlflow.lab.org")
    done = compose(tmp_path, file)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    inside, outside = checked(services["mlflow"]["environment"]), checked(read_file(file))
    for name in ("admin_password", "flask_key", "postgres_password", "artifacts", "name"):
        assert getattr(inside, name) == getattr(outside, name)
    passwords = set(services["postgres"]["environment"]) & set(SECRETS)
    assert passwords == {"POSTGRES_PASSWORD"}
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == outside.postgres_password
    assert services["proxy"]["environment"]["SERVER_NAME"] == outside.name
    assert not set(services["proxy"]["environment"]) & set(SECRETS)
    published = {name: service.get("ports") for name, service in services.items()}
    assert {name for name, ports in published.items() if ports} == {"proxy"}
    assert [str(port).split(":")[0] for port in published["proxy"]] == ["80", "443", "443"]
    for service in services.values():
        assert "image" not in service or re.search(r":\d+\.\d+[\d.]*-[a-z]+$", service["image"])
    # the database is no newer than its tools, which are trixie's
    assert re.fullmatch(r"postgres:17\..*", services["postgres"]["image"])
    [base] = re.findall(r"^FROM (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-trixie", base)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SERVER_NAME", "POSTGRES_PASSWORD"])
def test_compose_refuses_a_file_without_a_name_or_a_password(file, tmp_path, name):
    write_settings(file, "mlflow.lab.org")
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith(name)))
    done = compose(tmp_path, file)
    assert done.returncode != 0
    assert name in done.stderr


def test_hadolint_is_content_and_every_way_starts_the_program_that_refuses_weak_secrets():
    text = (DEPLOY / "Dockerfile").read_text()
    assert complaints("hadolint", "--no-color", text=text) == ""
    assert 'ENTRYPOINT ["python", "-m", "deploy.server"]' in text
    for file in filter(Path.is_file, DEPLOY.iterdir()):
        assert "mlflow server" not in file.read_text(), file


def test_a_server_needs_nothing_of_mlproject_but_what_its_image_copies(tmp_path):
    text = (DEPLOY / "Dockerfile").read_text()
    for words in re.findall(r"^COPY (.* \w+/\S*)$", text, re.MULTILINE):
        *sources, target = words.split()
        (tmp_path / target).mkdir(parents=True, exist_ok=True)
        for source in sources:
            for each in PROJECT.glob(source):
                shutil.copy(each, tmp_path / target)
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\nimport deploy.server.__main__"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_servers_packages_are_those_that_the_tests_run_and_settings_are_kept_out():
    requirements = (DEPLOY / "requirements.txt", PROJECT / "requirements.txt")
    pins = [re.search(r"^mlflow==\S+$", file.read_text(), re.MULTILINE)[0] for file in requirements]
    assert pins[0] == pins[1]
    assert "server.env" in (PROJECT / ".gitignore").read_text().split()
    ignored = (PROJECT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    assert "**/server.env" in ignored
