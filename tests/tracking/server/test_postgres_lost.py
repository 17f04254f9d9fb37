"""Postgres goes away under a server: what is told, and that nothing is lost or doubled."""

from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient
from servers import free_port
from stored_runs import filed

from tracking import schema
from tracking.connection import Server, TrackingError
from tracking.content import content_of
from tracking.server import mlflow_process, postgres
from tracking.upload.upload import ARTIFACTS, upload

pytestmark = pytest.mark.long


@pytest.fixture
def settings(postgres_programs, open_folder, monkeypatch):
    """A server of this test's own, and its client's variables."""
    made = mlflow_process.settings_in(open_folder, free_port())
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", made.admin)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", made.admin_password)
    with mlflow_process.running(made):
        yield made


def kill_postgres(settings):
    """The postmaster dies as of a crash; returns when its children have noticed and ended."""
    lines = (settings.state / "postgres" / "postmaster.pid").read_text().splitlines()
    postmaster = psutil.Process(int(lines[0]))
    family = [postmaster, *postmaster.children(recursive=True)]
    postmaster.kill()
    _, left = psutil.wait_procs(family, timeout=300)
    assert not left


def assert_stored_once(client, folder, record):
    """The server has one run of the record, with all that the record says."""
    content = content_of(record)
    [run] = client.search_runs(["0"], f"tags.`{schema.RECORD_ID}` = '{record.record_id}'")
    assert (run.info.status, run.data.params) == (content.status, content.params)
    points = [
        (one.key, one.step, one.timestamp, one.value)
        for key in run.data.metrics
        for one in client.get_metric_history(run.info.run_id, key)
    ]
    expected = [(p.key, p.step, int(p.unix_s * 1000), p.value) for p in content.metrics]
    assert sorted(points) == sorted(expected)
    for name in filter(lambda name: (folder.path / name).is_file(), ARTIFACTS):
        fetched = client.download_artifacts(run.info.run_id, name)
        assert Path(fetched).read_bytes() == (folder.path / name).read_bytes()


class CutOff(Server):
    """Postgres crashes once the run is made and not yet filled."""

    def __init__(self, settings):
        super().__init__(settings.url, 1.0)
        self._settings = settings

    def log(self, *content, **named):
        kill_postgres(self._settings)
        super().log(*content, **named)


def test_what_a_crashed_postgres_cut_is_there_once_when_it_is_back(settings, tmp_path):
    kept, cut, late = (filed(tmp_path) for _ in range(3))
    upload(*kept, Server(settings.url))
    for (folder, record), server in ((cut, CutOff(settings)), (late, Server(settings.url, 1.0))):
        with pytest.raises(TrackingError, match=r"the server fails \(50[03]\)") as told:
            upload(folder, record, server)
        assert told.value.away
        assert "\n" not in str(told.value)
    client = MlflowClient(settings.url)
    with postgres.running(settings.state, settings.postgres_port, settings.postgres_password):
        for folder, record in (cut, late):
            upload(folder, record, Server(settings.url))
        for folder, record in (kept, cut, late):
            assert_stored_once(client, folder, record)
