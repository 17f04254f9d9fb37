"""What doctor says of the tracking server."""

from servers import free_port

from tracking.store import tracking_checks


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
