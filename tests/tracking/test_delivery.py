"""A sweep's records on their way, one by one; and runs left RUNNING, of which ours are ended."""

import time

import psutil
import pytest
import samples
from stored_runs import assert_one_run, filed, project_run
from worker_processes import in_window

from bench.records.folders import RecordFolder
from mlproject import main
from tracking import schema
from tracking.connection import Server, TrackingError
from tracking.upload.delivery import Delivery, reap
from tracking.upload.upload import upload

HOUR_S = 3600.0
OURS = {schema.KIND: "measurement"}


@pytest.fixture
def sent(monkeypatch):
    """What reached the server; `refused` and `away` say what it does to which record."""

    class Sent:
        held, refused, away = [], set(), False

        def upload(self, folder, record, server=None, place=None):
            if self.away:
                raise TrackingError("http://x: nothing answers there")
            if folder.record_id in self.refused:
                raise TrackingError("http://x: no", away=False)
            self.held.append(folder.record_id)

    sent = Sent()
    sent.held = []
    monkeypatch.setattr("tracking.upload.delivery.upload", sent.upload)
    return sent


def test_a_record_that_is_refused_or_damaged_holds_up_no_other_and_is_named(sent, tmp_path):
    delivery = Delivery("none")
    refused, damaged, sound = (filed(tmp_path) for _ in range(3))
    sent.refused = {refused[0].record_id}
    delivery.deliver(*refused)
    assert delivery.problem == "http://x: no"
    damaged[0].record.write_text("{", encoding="utf-8")
    delivery.deliver(*damaged)
    delivery.deliver(*sound)
    assert sent.held == [sound[0].record_id]
    assert damaged[0].record_id in delivery.problem


def test_a_server_that_is_away_is_left_alone_for_a_while_and_gets_all_of_it_later(sent, tmp_path):
    now_s = [0.0]
    delivery = Delivery("none", clock=lambda: now_s[0])
    kept = [filed(tmp_path) for _ in range(3)]
    sent.away = True
    delivery.deliver(*kept[0])
    sent.away = False
    delivery.deliver(*kept[1])
    assert sent.held == []
    assert delivery.problem is not None
    now_s[0] = 61.0
    delivery.deliver(*kept[2])
    assert sent.held == [folder.record_id for folder, _ in kept]
    assert delivery.problem is None


def running(embedded, age_h=0.0, **tags):
    started_ms = int((time.time() - age_h * HOUR_S) * 1000)
    return embedded.create_run("0", start_time=started_ms, tags=tags).info.run_id


def ids(runs):
    return [run.info.run_id for run in runs]


@pytest.mark.slow
def test_a_run_of_ours_is_ended_past_the_age_alone_and_completed_by_its_record(embedded, tmp_path):
    folder, record = filed(tmp_path, samples.run_record())
    old = running(embedded, 3, **OURS, **{schema.RECORD_ID: record.record_id})
    young, made = running(embedded, 1, **OURS), project_run(embedded)
    ended, left = reap(2 * HOUR_S)
    assert (ids(ended), set(ids(left))) == ([old], {young, made})
    run = embedded.get_run(old)
    assert run.info.status == "KILLED"
    assert run.data.tags[schema.OUTCOME] == "interrupted"
    assert "sync --reap" in run.data.tags[schema.REASON]
    assert embedded.get_run(young).info.status == "RUNNING"
    assert set(ids(reap(0.0)[0])) == {young, made}
    assert upload(folder, record) == old
    run = embedded.get_run(old)
    assert run.info.status == "FINISHED"
    assert schema.REASON not in run.data.tags


@pytest.mark.slow
def test_runs_of_other_programs_are_not_looked_at(embedded):
    project = {"mlflow.source.type": "PROJECT"}
    sources = ("/somebody/their-project", "https://git.example/their#x", None)
    others = [
        running(embedded, 999, **project, **({"mlflow.source.name": name} if name else {}))
        for name in sources
    ] + [running(embedded, 999, team="theirs")]
    assert reap(1.0) == ([], [])
    assert {embedded.get_run(run_id).info.status for run_id in others} == {"RUNNING"}


@pytest.mark.slow
def test_the_command_ends_what_began_a_day_ago_unless_told_otherwise(
    embedded, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    running(embedded, 30, **OURS)
    running(embedded, 5, **OURS)
    assert main(["sync", "--reap"]) == 0
    assert "1 ended, 1 left running" in capsys.readouterr().out
    assert main(["sync", "--reap", "--older-than", "2h"]) == 0
    assert "1 ended, 0 left running" in capsys.readouterr().out


# `mlproject run` itself, with the server away or the command killed: nothing lost, all ended


@pytest.fixture
def records(proxy, mlproject_command):
    return mlproject_command.folder / "records"


def run(mlproject_command, iters=1):
    options = {"arch": "crashing_models:small", "backend": "cpu", "batch-size": 2}
    options |= {"image-size": 32, "warmup-iters": 1, "iters": iters, "max-seconds": "none"}
    words = [f"--{name}={value}" for name, value in options.items()]
    return mlproject_command.start("run", *words)


def only(records):
    [folder] = [RecordFolder(path) for path in records.iterdir() if (path / "config.json").exists()]
    return folder, folder.read_record()


@pytest.mark.parametrize("way", ["503", "hang", "401"])
@pytest.mark.long
def test_a_server_that_fails_ends_the_command_with_one_line_and_sync_goes_on(
    proxy, store, records, mlproject_command, way
):
    proxy.fail(1, way, times=10_000)
    command = run(mlproject_command)
    _, err = command.communicate(timeout=200)
    assert command.returncode == 3, err
    [line] = [line for line in err.splitlines() if line.startswith("mlproject:")]
    assert "safe in" in line
    assert "mlproject sync" in line
    assert "Traceback" not in err
    proxy.heal()
    assert main(["sync"]) == 0
    assert_one_run(store, *only(records))


@pytest.mark.long
def test_a_run_of_mlflow_whose_processes_are_killed_is_ended_by_sync(
    proxy, store, records, mlproject_command, monkeypatch
):
    made = project_run(Server().client)
    monkeypatch.setenv("MLFLOW_RUN_ID", made)
    command = run(mlproject_command, iters=10**7)
    monkeypatch.delenv("MLFLOW_RUN_ID")
    in_window(command, records)
    family = [*psutil.Process(command.pid).children(recursive=True), psutil.Process(command.pid)]
    for process in family:
        process.kill()
    command.communicate(timeout=300)
    psutil.wait_procs(family, timeout=120)
    assert main(["sync"]) == 0
    _, record = only(records)
    assert record.outcome == "interrupted"
    assert store.runs_of(record.record_id) == [made]
    assert store.info(made)[0] == "KILLED"
    assert store.tags(made)[schema.OUTCOME] == "interrupted"
