"""The embedded store: made whole or not at all, brought up to date whole, and known if damaged."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from mlflow.store.db import utils as db_utils
from sqlalchemy import create_engine
from stored_runs import filed

from mlproject import main
from tracking import schema
from tracking.connection import Server, TrackingError, tracking_checks
from tracking.reading.tracked_runs import search_runs

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.slow


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
@pytest.mark.parametrize(("folders", "seed"), [(5, 1), pytest.param(45, 2, marks=pytest.mark.long)])
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
    [check] = tracking_checks()
    assert check.status == "warning"


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
