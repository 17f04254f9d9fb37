"""A sweep's records on their way, one by one; and runs left RUNNING, of which ours are ended."""

import time

import pytest
import samples
from stored_runs import filed, project_run

from mlproject import main
from tracking import schema
from tracking.connection import TrackingError
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
