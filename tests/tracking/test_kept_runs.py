"""A second search of a large selection: what it sees and what it reads; and tables of runs."""

import math
import shutil
import sqlite3
import threading
from contextlib import closing
from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.tracking import MlflowClient

from tracking import schema, tracked_runs
from tracking.connection import Server, TrackingError
from tracking.embedded import EmbeddedReader
from tracking.tracked_runs import (
    TrackedRun,
    joined,
    newest_first,
    once_per_record,
    plain,
    runs_table,
    search_runs,
    search_table,
)

MEASURED = f"tags.`{schema.KIND}` = 'measurement'"
KNOWN = 10
START_MS = 1_700_000_000_000
NOW = datetime.now(timezone.utc)


def away(*_, **__):
    raise MlflowException("API request to http://x failed with exception away")


def taken_apart(table):
    """Each run of a table by itself."""
    runs = []
    for row in table.to_dict("records"):
        held = {"params": {}, "metrics": {}, "tags": {}}
        for name in [name for name in row if "." in name]:
            group, _, key = name.partition(".")
            if not pd.isna(value := row.pop(name)):
                held[group][key] = value
        runs.append(TrackedRun(**row, **held))
    return runs


class Runs:
    """The runs of a store, filled as our upload would."""

    def __init__(self, uri, made=0):
        self.uri, self.made = uri, made
        self.client = MlflowClient(uri)

    def add(self, *, days_ago=0, start_ms=None, whole=True):
        self.made += 1
        tags = {schema.KIND: "measurement", "number": str(self.made)}
        if whole:
            tags |= schema.whole_tags(NOW - timedelta(days=days_ago))
        start_ms = START_MS + self.made * 1000 if start_ms is None else start_ms
        run = self.client.create_run("0", start_time=start_ms, tags=tags)
        self.client.log_metric(run.info.run_id, "speed", self.made)
        self.client.log_param(run.info.run_id, "arch", "resnet18")
        if whole:
            self.client.set_terminated(run.info.run_id)
        return run.info.run_id

    def kept(self, **how):
        return taken_apart(search_table(Server(self.uri), MEASURED, **how))

    def all(self):
        return search_runs(MEASURED, tracking_uri=self.uri)


@pytest.fixture(scope="module")
def known_runs(tmp_path_factory):
    """A store with ten runs, to copy."""
    folder = tmp_path_factory.mktemp("known")
    with pytest.MonkeyPatch.context() as there:
        there.chdir(folder)  # where its artifacts would go
        runs = Runs(f"sqlite:///{folder}/mlflow.db")
        for day in range(KNOWN):
            runs.add(days_ago=30 + day)
    return folder / "mlflow.db"


@pytest.fixture
def runs(known_runs, tmp_path, monkeypatch):
    """Ten runs in a store of this test's own, searched once."""
    monkeypatch.setattr(tracked_runs, "KEPT_FROM", 2)
    runs = Runs(f"sqlite:///{shutil.copy(known_runs, tmp_path)}", KNOWN)
    assert runs.kept() == runs.all()
    return runs


@pytest.fixture
def kept_file(runs, tmp_path):
    [path] = (tmp_path / "cache").rglob("*.parquet")
    return path


@pytest.fixture
def read_ids(monkeypatch):
    """Ids of every run that is read from the store."""
    ids, read = [], EmbeddedReader.runs

    def watched(self, run_ids):
        ids.extend(run_ids)
        return read(self, run_ids)

    monkeypatch.setattr(EmbeddedReader, "runs", watched)
    return ids


@pytest.mark.slow
def test_only_what_is_new_is_read_and_late_uploads_of_old_runs_come_in_their_place(runs, read_ids):
    read_ids.clear()
    assert len(runs.kept()) == KNOWN
    assert read_ids == []
    new, late = runs.add(), runs.add(start_ms=START_MS - 86_400_000 * 300)
    behind = runs.add(days_ago=1)  # by a clock that is a day late
    read_ids.clear()
    found = runs.kept()
    assert set(read_ids) == {new, late, behind}
    assert (found[0].run_id, found[-1].run_id) == (behind, late)
    assert found == runs.all()


@pytest.mark.slow
def test_a_server_that_knows_no_is_null_is_read_whole_each_time(runs, monkeypatch):
    monkeypatch.setattr(EmbeddedReader, "of", lambda uri: None)
    search = MlflowClient.search_runs

    def before_3_10(self, experiment_ids, filter_string="", *args, **how):
        if "IS NULL" in filter_string:
            raise MlflowException("Invalid clause(s): 'IS', 'NULL'", INVALID_PARAMETER_VALUE)
        return search(self, experiment_ids, filter_string, *args, **how)

    monkeypatch.setattr(MlflowClient, "search_runs", before_3_10)
    for never_whole in (False, True, False):
        runs.add(whole=never_whole)
        assert runs.kept() == runs.all()
    monkeypatch.setattr(MlflowClient, "search_runs", away)
    with pytest.raises(TrackingError, match="away"):
        runs.kept()


@pytest.mark.slow
def test_a_run_that_is_not_whole_is_read_again_and_deleted_ones_are_gone_until_restored(runs):
    running, never_whole = runs.add(whole=False), runs.add(whole=False)
    assert runs.kept() == runs.all()
    runs.client.log_metric(never_whole, "speed", 7)
    runs.client.set_terminated(running, "FINISHED")
    for key, value in schema.whole_tags().items():
        runs.client.set_tag(running, key, value)
    by_id = {run.run_id: run for run in runs.kept()}
    assert by_id[running].status == "FINISHED"
    assert by_id[never_whole].metrics["speed"] == 7
    first = runs.kept()[4].run_id
    runs.client.delete_run(first)
    new = runs.add()  # as many runs as before, but others
    assert runs.kept() == runs.all()
    assert {first, new} - {run.run_id for run in runs.kept()} == {first}
    runs.client.restore_run(first)
    assert runs.kept() == runs.all()


@pytest.mark.slow
def test_a_renamed_run_and_an_upload_by_a_wrong_clock_show_with_refresh(runs):
    renamed = runs.kept()[4].run_id
    runs.client.update_run(renamed, name="by hand")
    wrong = runs.add(days_ago=3000)
    assert "by hand" not in [run.name for run in runs.kept()]  # as the documentation says
    assert wrong not in [run.run_id for run in runs.kept()]
    assert runs.kept(refresh=True) == runs.all()
    assert runs.kept() == runs.all()


@pytest.mark.slow
def test_after_a_long_time_and_in_a_new_store_of_the_same_name_all_is_read(
    runs, tmp_path, monkeypatch
):
    runs.add(days_ago=3000)
    monkeypatch.setattr(tracked_runs, "_MOST_DAYS", 1)
    assert runs.kept() == runs.all()
    monkeypatch.undo()
    monkeypatch.setattr(tracked_runs, "KEPT_FROM", 2)
    with closing(sqlite3.connect(tmp_path / "mlflow.db", timeout=120)) as connection, connection:
        connection.execute("UPDATE experiments SET creation_time = creation_time + 1")
        connection.execute("UPDATE latest_metrics SET value = 1000")
    assert {run.metrics["speed"] for run in runs.kept()} == {1000.0}


def test_a_damaged_file_is_read_from_the_server_again(runs, kept_file):
    text = kept_file.read_bytes()
    flipped = bytearray(text)
    flipped[100] ^= 1
    for damaged in (text[: len(text) // 2], b"", b"\xff" + text, bytes(flipped)):
        kept_file.write_bytes(damaged)
        assert runs.kept() == runs.all()
        assert kept_file.read_bytes() != damaged


@pytest.mark.slow
def test_searches_at_once_tell_all_and_a_small_selection_is_not_kept(runs, kept_file, monkeypatch):
    runs.add()
    found, together = [], threading.Barrier(4)

    def search():
        together.wait()
        found.append(runs.kept())

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [runs.all()] * 4
    monkeypatch.setattr(tracked_runs, "KEPT_FROM", KNOWN + 2)
    assert runs.kept() == runs.all()
    assert not kept_file.exists()


# Tables of runs: the same runs as one by one

NOON = datetime(2026, 11, 23, 12, 0, 0, 123_000, tzinfo=timezone.utc)


def run(number, *, params=None, metrics=None, tags=None, **info):
    known = {
        "name": f"run {number}",
        "status": "FINISHED",
        "start_time": NOON + timedelta(seconds=number),
        "artifact_uri": f"file:///{number}",
    }
    return TrackedRun(
        f"r{number}", params=params or {}, metrics=metrics or {}, tags=tags or {}, **known | info
    )


MIXED = [
    run(1, params={"arch": "resnet18", "a.b": ""}, metrics={"speed": 1.5}, tags={"team": "vision"}),
    run(2),
    run(3, params={"arch": "vgg16"}, metrics={"loss": -math.inf, "speed": 0.0}, tags={"Ü\n": "ß"}),
    run(4, params={"arch": "resnet18"}, tags={"speed": "fast"}, status="RUNNING"),
]


def test_a_table_holds_every_value_of_every_run_joined_and_taken_apart():
    table = joined([runs_table(MIXED[:1]), runs_table([]), runs_table(iter(MIXED[1:]))])
    assert taken_apart(table) == MIXED
    assert plain(table, "params.arch") == ["resnet18", None, "vgg16", "resnet18"]
    assert plain(table, "params.other") == [None] * 4
    np.testing.assert_array_equal(table["metrics.speed"], [1.5, np.nan, 0.0, np.nan])
    assert taken_apart(table[table["run_id"].isin(["r2", "r4"])]) == [MIXED[1], MIXED[3]]
    table = runs_table([run(2, start_time=NOON), run(1, start_time=NOON), run(3)])
    assert list(newest_first(table)["run_id"]) == ["r3", "r2", "r1"]


def test_of_a_record_a_whole_run_counts_else_the_first_id_and_runs_without_one_all_do():
    tags = {schema.RECORD_ID: "a"}, {schema.RECORD_ID: "b"}, {}
    whole = tags[0] | {schema.UPLOADED: "true"}
    runs = [run(n, tags=of) for n, of in ((5, tags[2]), (4, tags[1]), (3, whole), (2, tags[1]))]
    runs += [run(1, tags=tags[0]), run(0, tags=tags[2])]
    assert list(once_per_record(runs_table(runs))["run_id"]) == ["r5", "r3", "r2", "r0"]
