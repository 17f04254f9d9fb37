"""The embedded store: made whole or not at all, brought up to date whole, and known if damaged.

And where its files are: in a folder that was moved, and on the machine of a server over it.
"""

import math
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from faulty_proxy import faulty_proxy
from mlflow.entities import ViewType
from mlflow.store.db import utils as db_utils
from mlflow.tracking import MlflowClient
from servers import mlflow_server
from sqlalchemy import create_engine
from stored_runs import filed

from bench.errors import Problem
from mlproject import main
from tracking import schema
from tracking.connection import Server, TrackingError, tracking_state
from tracking.embedded import EmbeddedReader, conditions
from tracking.store import is_servers_folder, place_of_files
from tracking.tracked_runs import download_record, search_runs
from tracking.upload.upload import upload

HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unpainted")]


def sql(file, *statements):
    """Run each statement; return the rows of the last."""
    with closing(sqlite3.connect(file)) as database:
        rows = [database.execute(statement).fetchall() for statement in statements][-1]
        database.commit()
    return rows


def half_made(file, revision):
    """A store of the MLflow that had the tables of this revision; no command came to its end."""
    engine = create_engine(f"sqlite:///{file}")
    db_utils.InitialBase.metadata.create_all(engine)
    config = db_utils._get_alembic_config(str(engine.url))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


@pytest.mark.skipif(os.name == "nt", reason="forks and kills")
@pytest.mark.parametrize(("folders", "seed"), [(2, 1), pytest.param(48, 2, marks=pytest.mark.long)])
def test_first_commands_at_once_and_killed_leave_a_whole_store(
    tmp_path, monkeypatch, folders, seed
):
    words = [sys.executable, HERE / "first_commands.py", tmp_path, str(folders), str(seed)]
    here = {"MLFLOW_TRACKING_URI": "sqlite:///mlflow.db", "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(words, env=os.environ | here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for number in range(folders):
        folder = tmp_path / str(number)
        assert sql(folder / "mlflow.db", "PRAGMA integrity_check") == [("ok",)]
        assert sql(folder / "mlflow.db", "SELECT name FROM experiments") == [("Default",)]
        assert {path.name for path in folder.iterdir()} == {"mlflow.db", "mlflow.db.lock"}
        assert len(Server(f"sqlite:///{folder}/mlflow.db").experiments) == 1


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """A store of runs that differ in all that can be asked for."""
    folder = tmp_path_factory.mktemp("varied")
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    other = client.create_experiment("other", tags={"a": "b"})
    client.create_experiment("gone")
    client.delete_experiment(client.get_experiment_by_name("gone").experiment_id)
    for number in range(6):
        where = other if number % 2 else "0"
        tags = {"mlproject.kind": "measurement", "day": f"2026-11-{number:02}T1", "it's": "100%"}
        run_id = client.create_run(where, start_time=1000 + number // 2, tags=tags).info.run_id
        client.log_param(run_id, "arch", "resnet50" if number > 2 else "ResNet50")
        for step, value in enumerate((3.0, math.inf, math.nan, float(number))[: number + 1]):
            client.log_metric(run_id, "speed", value, step=step, timestamp=number)
        if number > 3:
            client.set_tag(run_id, "whole", "")
            client.set_terminated(run_id)
    client.delete_run(run_id)
    return client


FILTERS = [
    ("", True),
    ("tags.`day` LIKE '2026-11-0%'", True),
    ("tags.`day` like '2026-11-03%' AND params.arch = 'resnet50'", True),
    ("tags.mlproject.kind = 'measurement' and metrics.speed >= 3 and metrics.speed < 1e9", False),
    ("metrics.speed > 1 and metrics.`speed` <= 4.5", False),
    ("params.arch = 'resnet50'", True),
    ("tags.`whole` IS NULL and attributes.start_time <= 1001", False),
    ("tags.`whole` IS NULL and params.arch LIKE 'R%'", True),
    ("tags.`whole` = ''", True),
    ("tags.day LIKE '%'", True),
    ("tags.day LIKE '2026-11-[0]%'", False),
    ("tags.day = 'a' and", False),
    ("attributes.status = 'RUNNING'", True),
    ("tags.`it's` = '100%'", True),
    ("tags.`it's` LIKE '1_0%'", False),
    ("params.arch LIKE '%Net50'", False),
    ("params.arch ILIKE 'resnet%'", False),
    ("params.arch != 'resnet50'", False),
    ("attributes.run_name = 'x'", False),
]


@pytest.mark.parametrize(("wanted", "is_read"), FILTERS)
def test_a_store_that_is_read_by_sql_says_what_mlflow_says(varied, wanted, is_read):
    def facts(runs):
        of_run = ("run_id", "run_name", "status", "start_time", "artifact_uri", "experiment_id")
        return [
            [
                *(getattr(run.info, name) for name in (*of_run, "lifecycle_stage")),
                *(run.data.params, run.data.tags, str(run.data.metrics)),
                sorted((m.key, m.step, m.timestamp) for m in run.data._metric_objs),
            ]
            for run in runs
        ]

    uri = varied.tracking_uri
    assert (conditions(wanted) is not None) is is_read
    assert conditions(f"Tags.a = 'b' and {wanted}") is None  # which MLflow refuses
    for stage in (ViewType.ACTIVE_ONLY, ViewType.DELETED_ONLY, ViewType.ALL):
        by_sql = facts(Server(uri).search(wanted, stage=stage))
        there = varied.search_runs(["0", "1"], wanted, stage)
        assert by_sql == facts(there)
    with pytest.raises(TrackingError, match="Invalid experiment ID"):
        list(Server(uri).search(wanted, ["not there"]))
    ours, theirs = (
        sorted((e.experiment_id, e.name, e.artifact_location, e.creation_time, e.tags) for e in of)
        for of in (Server(uri).experiments, varied.search_experiments())
    )
    assert ours == theirs


def test_tables_of_another_version_are_read_by_mlflow(varied, tmp_path):
    uri = f"sqlite:///{shutil.copy(varied.tracking_uri.removeprefix('sqlite:///'), tmp_path)}"
    assert EmbeddedReader.of(uri)  # those of the MLflow that is installed
    sql(tmp_path / "mlflow.db", "UPDATE alembic_version SET version_num = '451aebb31d03'")
    assert EmbeddedReader.of(uri) is None


def test_what_a_killed_process_left_beside_is_written_over(tmp_path):
    file = tmp_path / "mlflow.db"
    for name in ("mlflow.db", "mlflow.db.new", "mlflow.db.new-journal", "mlflow.db-journal"):
        (tmp_path / name).write_bytes(b"" if name == file.name else b"half")
    assert Server().client
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlflow.db.lock"}


def test_a_store_of_an_older_mlflow_gets_its_tables_and_keeps_its_runs(tmp_path):
    file = tmp_path / "mlflow.db"
    half_made(file, "bd07f7e963c5")
    names = "experiment_id, name, artifact_location, lifecycle_stage"
    sql(file, f"INSERT INTO experiments ({names}) VALUES (0, 'Default', 'a', 'active')")
    sql(file, f"INSERT INTO experiments ({names}) VALUES (7, 'mine', 'b', 'active')")
    with closing(sqlite3.connect(file)) as watcher:  # has the file open all the while
        assert watcher.execute("SELECT count(*) FROM experiments").fetchone() == (2,)
        names = {one.name for one in Server().experiments}
        assert names == {"Default", "mine"}
        assert watcher.execute("SELECT count(*) FROM logged_models").fetchone() == (0,)


def damaged(file, how):
    if how == "unfinished":  # a kill between two of the statements that make it
        half_made(file, "bd07f7e963c5")
        sql(file, "CREATE TABLE trace_info (half INTEGER)")
        return
    filed(file.parent / "records")
    assert main(["sync"]) == 0
    if how == "no text":
        sql(file, "UPDATE experiments SET name = CAST(x'c328' AS TEXT)")
        return
    text = file.read_bytes()
    file.write_bytes({"cut": text[: len(text) // 2], "other": b"not a store" * 999}[how])


@pytest.mark.parametrize("how", ["unfinished", "no text", "cut", "other"])
def test_a_damaged_store_is_one_line_that_says_what_to_do(tmp_path, monkeypatch, capfd, how):
    monkeypatch.chdir(tmp_path)
    damaged(tmp_path / "mlflow.db", how)
    filed(tmp_path / "records")
    capfd.readouterr()
    codes = {"sync": 3, "pull": 2, "report": 2}
    for words in (("sync",), ("pull", "--out", "runs.csv"), ("report", "--no-log")):
        assert main(list(words)) == codes[words[0]]
        said = capfd.readouterr().err
        assert "Traceback" not in said
        assert said.count("move mlflow.db away") == 1
    assert isinstance(tracking_state(), Problem)


def test_metrics_of_others_between_two_steps_stop_no_sync(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    good = [filed(tmp_path / "records")[1].record_id for _ in range(2)]
    assert main(["sync"]) == 0
    client = Server().client
    for run in search_runs():
        # SQLite keeps what the column's type does not allow
        client.log_metric(run.run_id, "val_loss", 1.0, step=0.5)
        client.log_metric(run.run_id, "attained_gflops", 1.0, step=2.5)
        client.set_tag(run.run_id, schema.VERDICT, "changed by hand")
    assert main(["sync"]) == 0
    assert "2 put right" in capfd.readouterr().out
    assert main(["sync", "--verify"]) == 0
    runs = {run.data.tags[schema.RECORD_ID]: run.data for run in client.search_runs(["0"])}
    assert sorted(runs) == sorted(good)
    for data in runs.values():
        assert data.metrics["val_loss"] == 1.0
        assert data.metrics["attained_gflops"] > 1.0


def test_what_is_not_the_stores_fault_is_not_put_on_it(embedded):
    with pytest.raises(TrackingError, match="filter") as refused:
        search_runs("no filter")
    assert "move" not in str(refused.value)


# A folder that was moved or copied: MLflow keeps absolute paths


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_the_files_of_a_moved_folder_are_those_beside_its_store(tmp_path, monkeypatch, how, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    monkeypatch.chdir(first)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{first}/mlflow.db")
    _, record = filed(first / "records")
    assert main(["sync"]) == 0
    monkeypatch.chdir(tmp_path)
    if how == "moved":
        first.rename(second)
    else:
        shutil.copytree(first, second)
        shutil.rmtree(first / "mlruns" / "0")
    monkeypatch.chdir(second)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{second}/mlflow.db")
    left = sorted(first.rglob("*"))
    [run] = search_runs()
    assert download_record(run.run_id) == record
    assert main(["sync", "--verify"]) == 0
    filed(second / "records")
    assert main(["sync"]) == 0
    assert "1 uploaded, 1 there already" in capsys.readouterr().out
    assert main(["report", "--out", "r"]) == 0
    assert len([*second.glob("mlruns/0/*/artifacts/record.json")]) == 2
    assert len([*second.glob("mlruns/0/*/artifacts/report/*")]) > 0
    there = f"sqlite:///{tmp_path}/there.db"
    monkeypatch.chdir(tmp_path)
    assert main(["sync", "--from", f"sqlite:///{second}/mlflow.db", "--to", there]) == 0
    assert sorted(first.rglob("*")) == left


def test_a_place_of_files_that_is_there_or_named_by_the_user_stays(tmp_path):
    file, below = tmp_path / "db" / "mlflow.db", Path("mlruns", "0", "run", "artifacts")
    uri, beside = f"sqlite:///{file}", file.parent / below
    elsewhere, gone = tmp_path / "work" / below, tmp_path / "gone" / below
    elsewhere.parents[3].mkdir()  # the store is not where the command was given
    assert place_of_files(uri, str(elsewhere)) == str(elsewhere)
    for there in (str(gone), gone.as_uri()):
        assert place_of_files(uri, there) == beside.as_uri()
    elsewhere.mkdir(parents=True)
    beside.parents[1].mkdir(parents=True)
    assert place_of_files(uri, str(elsewhere)) == str(elsewhere)
    for other in ("s3://bucket/mlruns/0/run/artifacts", "mlflow-artifacts:/0/run/artifacts"):
        assert place_of_files(uri, other) == other
    assert place_of_files("http://x", str(gone)) == str(gone)


# An MLflow of old, whose store is a folder


def test_an_old_mlruns_beside_is_told_with_what_helps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("name: Default\n")
    filed(tmp_path / "records")
    for words, code in ((["sync"], 3), (["pull", "--out", "runs.csv"], 2)):
        assert main(words) == code
        [line] = capsys.readouterr().err.splitlines()
        assert "export MLFLOW_TRACKING_URI=sqlite:///mlflow.db" in line
        assert "later" not in line
    assert "export MLFLOW_TRACKING_URI=sqlite:///mlflow.db" in tracking_state().what
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    assert main(["sync"]) == 0


# A server over a store that was begun embedded: its files are on its own machine


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder with one tracked record, and the URI of a server over its store."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as there:
        there.chdir(folder)
        upload(*filed(folder / "records"), Server(f"sqlite:///{folder}/mlflow.db"))
    with mlflow_server(folder, f"sqlite:///{folder}/mlflow.db") as uri:
        yield folder, uri


def test_who_sees_the_servers_folder_uploads_and_everybody_reads_it(served, tmp_path, monkeypatch):
    folder, uri = served
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    [before] = search_runs()
    assert download_record(before.run_id).record_id == before.tags["mlproject.record_id"]
    _, record = filed(tmp_path / "records")
    sync = ["sync", "--records", str(tmp_path / "records")]
    assert main(sync) == main([*sync, "--verify"]) == 0
    [run] = search_runs(f"tags.`mlproject.record_id` = '{record.record_id}'")
    assert (folder / "mlruns" / "0" / run.run_id / "artifacts" / "record.json").exists()
    shutil.rmtree(folder / "mlruns" / "0" / run.run_id)
    assert main([*sync, "--verify"]) == 1
    assert main(sync) == main([*sync, "--verify"]) == 0
    there = f"sqlite:///{tmp_path}/there.db"
    assert main(["sync", "--from", uri, "--to", there]) == 0
    assert len(search_runs(tracking_uri=there)) == 2


@pytest.mark.parametrize("made", [True, False])
def test_a_server_that_does_not_see_what_this_machine_writes_is_refused_before_anything_is_sent(
    served, tmp_path, monkeypatch, capsys, made
):
    folder, uri = served
    if not made:  # a place that this machine cannot make
        (tmp_path / "file").touch()
        with monkeypatch.context() as there:
            there.setenv("MLFLOW_TRACKING_URI", uri)
            there.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
            Server().client.create_experiment("elsewhere", str(tmp_path / "file" / "mlruns"))
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    filed(tmp_path / "records")
    sync = ["sync", "--records", str(tmp_path / "records")]
    with faulty_proxy(uri) as (proxy, far):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", far)
        if made:  # what a server on another machine lists
            proxy.fail(1, (200, "{}"), times=10**6, only="mlflow/artifacts/list")
        known, files = len(search_runs()), sorted(folder.rglob("*/artifacts/*"))
        for words in (sync, [*sync, "--verify"]):
            assert main(words) == 3
            *_, line = capsys.readouterr().err.splitlines()
            assert "--artifacts-destination" in line
            assert "later" not in line
        assert "--artifacts-destination" in tracking_state().what
        assert len(search_runs()) == known
        assert sorted(folder.rglob("*/artifacts/*")) == files
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"through the server, {made}")
        assert main(sync) == main([*sync, "--verify"]) == 0


def test_which_places_of_files_are_on_the_servers_machine():
    for folder in ("/srv/m/0", "mlruns/0", "file:///srv/m", "C:/m/0", "C:\\m\\0", "file://host/m"):
        assert is_servers_folder("https://x", folder)
        assert not is_servers_folder("sqlite:///mlflow.db", folder)
    for other in ("s3://b/0", "gs://b", "mlflow-artifacts:/0", "dbfs:/m", "wasbs://c@a/p", ""):
        assert not is_servers_folder("https://x", other)
