"""The tracking server: what may be shown of its address, and what doctor says of it."""

from functools import partial
from pathlib import Path

import mlflow
import pytest
from refusals import refusal
from servers import free_port
from sqlalchemy import create_engine

from analysis import pull_record, pull_runs
from tracking.store import TrackingError, experiment_id, is_unmade, public_uri, tracking_checks


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("https://me:secret@server.example:8443/path", "https://server.example:8443/path"),
        ("postgresql://me:s@host/db?password=secret", "postgresql://host/db"),
        ("sqlite:////abs/mlflow.db", "sqlite:////abs/mlflow.db"),
    ],
)
def test_no_secret_is_shown_and_the_rest_stays(uri, shown):
    assert public_uri(uri) == shown
    assert public_uri(shown) == shown


def test_an_embedded_store_has_one_name_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert public_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.parametrize("uri", [None, "sqlite:///new.db", "sqlite:///{}/new.db"])
def test_asking_makes_no_store(monkeypatch, tmp_path, uri):
    folder = tmp_path / "a folder, 100%"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    if uri is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(folder))
    [check] = tracking_checks()
    assert check.status == "ok"
    assert "will be made" in check.detail
    for read in (pull_runs, partial(pull_record, "a" * 32)):
        assert ".db, so no runs are tracked there: go to the folder" in refusal(read)
    assert list(tmp_path.rglob("*")) == [folder]
    opened = Path(create_engine(mlflow.get_tracking_uri()).url.database)
    opened.parent.mkdir(exist_ok=True)
    opened.touch()
    assert not is_unmade(mlflow.get_tracking_uri())


@pytest.mark.parametrize(
    "words",
    [
        ("pull",),
        ("report",),
        ("compare", "campaign=a", "campaign=b"),
        ("predict", "--arch", "vgg16", "--batch-size", "8"),
    ],
)
def test_a_command_that_reads_refuses_a_folder_without_runs(mlproject_command, words):
    code, out, err = mlproject_command(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"mlproject: {mlproject_command.folder} has no mlflow.db, ")
    assert err.count("\n") == 1
    made = {path.name for path in mlproject_command.folder.iterdir()}
    assert made <= {"cache"}  # matplotlib's list of fonts


def test_a_server_that_is_gone_has_a_remedy(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://u:secret@127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    [check] = tracking_checks()
    assert check.status == "warning"
    assert "MLFLOW_TRACKING_URI" in check.remedy
    assert "secret" not in check.detail


def test_variables_that_name_two_experiments_are_refused(embedded, monkeypatch):
    ids = {name: embedded.create_experiment(name) for name in ("mine", "yours")}
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", ids["mine"])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert experiment_id(embedded) == ids["mine"]
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "yours")
    with pytest.raises(TrackingError, match="two experiments"):
        experiment_id(embedded)
