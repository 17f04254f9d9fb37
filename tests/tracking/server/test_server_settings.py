"""What a server does not start with: each in one line that names the variable, never the value."""

import itertools
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.errors import UserError
from tracking.server.__main__ import server
from tracking.server.settings import SECRETS, checked, new_secret, read_file, write_settings

PROJECT = Path(__file__).resolve().parents[3]
SERVER = PROJECT / "tracking" / "server"
DEPLOY = PROJECT / "deploy" / "server"
GOOD = {"SERVER_NAME": "mlflow.lab.org", **{name: new_secret() for name in SECRETS}}


def refusal(**changes):
    with pytest.raises(UserError) as refused:
        checked(GOOD | changes)
    return str(refused.value)


def test_good_settings_are_taken():
    settings = checked(GOOD)
    assert settings.admin_password == GOOD["MLFLOW_AUTH_ADMIN_PASSWORD"]
    assert settings.artifacts_folder == Path("/var/lib/mlproject-server/artifacts")
    assert checked(GOOD | {"ARTIFACTS": "s3://runs/here"}).artifacts_folder is None


@pytest.mark.parametrize(
    ("weak", "why"),
    [
        ("", "is missing"),
        ("k3u9f8w2n4v7x1z", "has 15 characters"),
        ("aaaaaaaaaaaaaaaaaaaaaaaa", "repeats few characters"),
        ("abcabcabcabcabcabcabcabc", "repeats few characters"),
        ("changeme-changeme-1", "placeholder"),
        ("CHANGE_ME_PLEASE_2026", "placeholder"),
        ("p4ssw0rd-of-the-server", "placeholder"),
        ("my-very-secret-thing", "placeholder"),
        ("mlflow-mlflow-server", "placeholder"),
        ("1234567890abcdefghij", "placeholder"),
    ],
)
def test_a_weak_secret_is_refused(weak, why):
    for name in SECRETS:
        message = refusal(**{name: weak})
        assert f"{name} {why}" in message.replace("is or holds a placeholder", "placeholder")
        assert "\n" not in message
        assert not weak or weak not in message


def test_no_two_secrets_are_the_same():
    for first, second in itertools.combinations(SECRETS, 2):
        message = refusal(**{first: GOOD[second]})
        assert f"{second} is the same as {first}" in message
        assert GOOD[second] not in message


def test_everything_that_is_wrong_is_said_at_once():
    message = refusal(**dict.fromkeys(SECRETS, ""), SERVER_NAME="")
    assert all(name in message for name in (*SECRETS, "SERVER_NAME"))


def test_a_wrong_value_is_named():
    for name, values in {
        "SERVER_NAME": (
            "*",
            "*.lab.org",
            "https://mlflow.lab.org",
            "mlflow.lab.org\nevil",
            "a..b",
            "a.-b",
        ),
        "MLFLOW_PORT": ("http", "65536", "99999"),
        "POSTGRES_PORT": ("-1", "70000"),
        "BACKUPS_KEPT": ("0",),
        "MAX_UPLOAD": ("lots",),
        "MAX_REQUESTS": ("0",),
        "ARTIFACTS": ("somewhere", "http://bucket"),
    }.items():
        for value in values:
            assert f"{name} is " in refusal(**{name: value})


def test_settings_show_no_secret_when_printed():
    assert not any(GOOD[name] in repr(checked(GOOD)) for name in SECRETS)


# The file


def test_a_written_file_is_good_its_owners_alone_and_never_written_over(tmp_path):
    file = tmp_path / "server.env"
    write_settings(file, "mlflow.lab.org")
    before = file.read_text()
    assert checked(read_file(file)).name == "mlflow.lab.org"
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="exists"):
        write_settings(file, "mlflow.lab.org")
    assert file.read_text() == before


def test_a_name_is_checked_before_a_file_is_written(tmp_path):
    file = tmp_path / "server.env"
    with pytest.raises(UserError, match="no name of a server"):
        write_settings(file, "Bad Name!*")
    assert not file.exists()
    write_settings(file, "MLflow.Lab.org")
    assert checked(read_file(file)).name == "mlflow.lab.org"


def test_a_line_that_others_would_read_differently_or_not_at_all_is_named(tmp_path):
    file = tmp_path / "server.env"
    for value in ('"quoted"', "'quoted'", "two words", "$HOME", "a#b", "back\\"):
        file.write_text(f"# mine\n\nPOSTGRES_PASSWORD={value}\n")
        with pytest.raises(UserError, match="line 3: POSTGRES_PASSWORD") as refused:
            read_file(file)
        assert value not in str(refused.value)
    for line in ("export A=1", "A: 1", "a=1", "=1", "words"):
        file.write_text(line + "\n")
        with pytest.raises(UserError, match="line 1: not NAME=value"):
            read_file(file)


def test_the_example_names_every_setting_and_gives_no_secret():
    example = DEPLOY / "server.env.example"
    given = read_file(example)
    assert not any(given[name] for name in SECRETS)
    for name in re.findall(r"^#?([A-Z_0-9]+)=", example.read_text(), re.MULTILINE):
        if not name.startswith(("AWS_", "MLFLOW_S3_")):  # their own libraries read them
            readers = (SERVER / "settings.py", DEPLOY / "compose.yaml")
            assert all(name in reader.read_text() for reader in readers), name


@pytest.mark.parametrize("subcommand", ["check", "start", "backup", "health"])
def test_every_command_refuses_in_one_line_that_shows_no_value(subcommand, monkeypatch):
    for name, value in (GOOD | {"POSTGRES_PASSWORD": "changeme"}).items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(server, [subcommand])
    assert isinstance(done.exception, UserError)  # `python -m` makes it exit code 2
    assert done.stdout == ""
    assert "POSTGRES_PASSWORD has 8 characters" in str(done.exception)
    assert "changeme" not in str(done.exception)
    assert "\n" not in str(done.exception)
