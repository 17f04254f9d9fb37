"""Postgres goes away under a server: what is told, and that nothing is lost or doubled."""

from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from conftest import own_folder, postgres_of, running, settings_in
from mlflow.tracking import MlflowClient
from stored_runs import filed

from tracking import schema
from tracking.connection import Server, TrackingError
from tracking.content import content_of
from tracking.upload.upload import ARTIFACTS, upload

pytestmark = pytest.mark.long


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

    settings = None

    def log(self, *content, **named):
        kill_postgres(self.settings)
        super().log(*content, **named)


def test_what_a_crashed_postgres_cut_is_there_once_when_it_is_back(tmp_path, monkeypatch):
    kept, cut, late = (filed(tmp_path) for _ in range(3))
    with own_folder() as folder, ExitStack() as stack:
        settings = settings_in(folder)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", settings.admin)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", settings.admin_password)
        stack.enter_context(postgres_of(settings))
        stack.enter_context(running(settings))
        upload(*kept, Server(settings.url))
        crashing = CutOff(settings.url, 1.0)
        crashing.settings = settings
        for files, server in ((cut, crashing), (late, Server(settings.url, 1.0))):
            with pytest.raises(TrackingError, match=r"the server fails \(50[03]\)") as told:
                upload(*files, server)
            assert told.value.away
            assert "\n" not in str(told.value)
        with postgres_of(settings):
            for files in (cut, late):
                upload(*files, Server(settings.url))
            for files in (kept, cut, late):
                assert_stored_once(MlflowClient(settings.url), *files)
