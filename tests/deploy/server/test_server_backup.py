"""Back-ups that come back: everything is dropped, restored, and equal."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
from operated import PROJECT, own_folder, postgres_of, settings_in

from deploy.server import backup
from deploy.server.__main__ import healthy
from deploy.server.settings import Refused

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """A Postgres with three runs in a database to copy from."""
    with own_folder() as folder, pytest.MonkeyPatch.context() as patch:
        made = settings_in(folder)
        patch.setenv("PGPASSWORD", made.postgres_password)
        with postgres_of(made):
            with store(made) as client:
                some_runs(client, 3)
            sql(made, "ALTER DATABASE mlflow RENAME TO three_runs")
            yield made


@pytest.fixture
def settings(cluster, tmp_path, monkeypatch):
    """The settings of a server with three runs and one artifact, each test its own."""
    monkeypatch.setenv("PGPASSWORD", cluster.postgres_password)
    sql(cluster, "DROP DATABASE IF EXISTS mlflow")
    sql(cluster, "CREATE DATABASE mlflow TEMPLATE three_runs")
    file = tmp_path / "artifacts" / "workspaces" / "default" / "a file.csv"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(range(256)))
    places = {"artifacts": str(tmp_path / "artifacts"), "backups": tmp_path / "backups"}
    return cluster.model_copy(update=places)


def sql(settings, statement):
    backup._psql(settings, "postgres", statement)


@contextmanager
def store(settings):
    """MLflow's client on the database itself, and no connection left when the block ends."""
    client = MlflowClient(settings.database_uri)
    yield client
    client._tracking_client.store.engine.dispose()


def held(settings):
    """Every run of the database with its points, and the bytes of every artifact."""
    with store(settings) as client:
        runs = [
            (
                dict(run.info),
                run.data.to_dictionary(),
                [dict(point) for point in client.get_metric_history(run.info.run_id, "m")],
            )
            for run in client.search_runs(["0"], order_by=["attributes.run_id"])
        ]
    files = settings.artifacts_folder.rglob("*")
    return runs, {path.name: path.read_bytes() for path in files if path.is_file()}


def some_runs(client, count):
    for number in range(count):
        run = client.create_run("0", tags={"number": str(number)})
        client.log_batch(run.info.run_id, [Metric("m", step / 3, step, step) for step in range(9)])
        client.set_terminated(run.info.run_id)


def test_all_is_equal_after_everything_was_dropped_and_again_after_that(settings):
    before = held(settings)
    assert len(before[0]) == 3
    assert before[1] == {"a file.csv": bytes(range(256))}
    made = backup.back_up(settings)
    assert made.stat().st_mode & 0o077 == 0
    sql(settings, "DROP DATABASE mlflow")
    sql(settings, "CREATE DATABASE mlflow")
    shutil.rmtree(settings.artifacts_folder)
    backup.restore(settings, made, replace=False)
    assert held(settings) == before
    shutil.rmtree(made)
    backup.restore(settings, backup.back_up(settings), replace=True)
    assert held(settings) == before


def test_what_is_there_goes_only_when_asked_and_is_kept_even_then(settings):
    before, made = held(settings), backup.back_up(settings)
    with store(settings) as client:
        some_runs(client, 1)
    (settings.artifacts_folder / "newer.txt").write_text("newer")
    newer = held(settings)
    with pytest.raises(Refused, match="--replace"):
        backup.restore(settings, made, replace=False)
    assert held(settings) == newer
    backup.restore(settings, made, replace=True)
    assert held(settings) == before
    [aside] = settings.artifacts_folder.parent.glob("artifacts.replaced-*")
    sql(settings, "DROP DATABASE mlflow")
    sql(settings, f"ALTER DATABASE mlflow_{aside.suffix[1:].replace('-', '_')} RENAME TO mlflow")
    assert held(settings.model_copy(update={"artifacts": str(aside)})) == newer


def test_a_damaged_back_up_changes_nothing(settings):
    before, made = held(settings), backup.back_up(settings)
    dump = made / "database.dump"
    dump.write_bytes(dump.read_bytes()[:-2000])
    with pytest.raises(Refused, match="pg_restore"):
        backup.restore(settings, made, replace=True)
    assert held(settings) == before


def test_a_link_among_artifacts_is_neither_followed_nor_brought_back(settings, tmp_path):
    (tmp_path / "secret.txt").write_text("not of the server")
    (settings.artifacts_folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    made = backup.back_up(settings)
    (made / "artifacts" / "escaped").symlink_to(tmp_path)
    backup.restore(settings, made, replace=True)
    assert not [path for path in settings.artifacts_folder.rglob("*") if path.is_symlink()]
    assert {*held(settings)[1]} == {"a file.csv"}


def test_an_archive_of_an_older_version_is_not_passed_over(settings):
    made = backup.back_up(settings)
    (made / "artifacts").rename(made / "artifacts.tar")
    with pytest.raises(Refused, match="unpack it to"):
        backup.restore(settings, made, replace=True)


def test_a_running_server_is_backed_up_and_never_restored_into(server):
    made = backup.back_up(server.settings)
    assert (made / "database.dump").stat().st_size > 10_000
    with pytest.raises(Refused, match="in use: stop"):
        backup.restore(server.settings, made, replace=True)
    assert healthy(server.settings)


def test_the_oldest_back_ups_and_what_a_reboot_left_of_one_go_with_the_next(settings):
    settings = settings.model_copy(update={"backups_kept": 2})
    for name in ("20260101T000000Z", "20260102T000000Z", "20260101T000000000000Z.partial"):
        (settings.backups / name).mkdir(parents=True)
        if "partial" not in name:
            (settings.backups / name / "backup.json").write_text("{}")
    (settings.backups / "something of mine").mkdir()
    made = backup.back_up(settings)
    kept = {path.name for path in settings.backups.iterdir()}
    assert kept == {"20260102T000000Z", made.name, "something of mine"}


def test_a_back_up_that_fails_leaves_nothing_that_looks_like_one(settings, tmp_path, monkeypatch):
    with pytest.raises(Refused, match="no whole back-up"):
        backup.restore(settings, tmp_path, replace=True)
    sql(settings, "DROP DATABASE mlflow")
    with pytest.raises(Refused, match="pg_dump"):
        backup.back_up(settings)
    with pytest.raises(Refused, match=r"failed: .*refused Is the server running on that host"):
        backup.back_up(settings.model_copy(update={"postgres_port": 1}))
    assert list(settings.backups.iterdir()) == []
    (tmp_path / "a file").touch()
    with pytest.raises(Refused, match="no back-up was made"):
        backup.back_up(settings.model_copy(update={"backups": tmp_path / "a file" / "y"}))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match=r"no pg_dump on the path: .*apt-get install"):
        backup.back_up(settings)


@pytest.mark.long
def test_an_upgrade_of_a_database_that_needs_none_keeps_the_runs(settings):
    before = held(settings)
    words = ["--settings", settings.state / "server.env", "upgrade"]
    command = [sys.executable, "-m", "deploy.server", *words]
    done = subprocess.run(command, cwd=PROJECT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert held(settings) == before
