"""The tracking server: what may be shown of its address, and what doctor says of it."""

import pytest
from servers import free_port

from tracking.store import public_uri, tracking_checks


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


def test_asking_makes_no_store(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new.db")
    [check] = tracking_checks()
    assert check.status == "ok"
    assert "will be made" in check.detail
    assert list(tmp_path.glob("new.db")) == []


def test_a_server_that_is_gone_has_a_remedy(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://u:secret@127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    [check] = tracking_checks()
    assert check.status == "warning"
    assert "MLFLOW_TRACKING_URI" in check.remedy
    assert "secret" not in check.detail
