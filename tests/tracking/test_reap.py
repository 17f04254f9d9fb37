"""Runs left RUNNING: this project's are ended past an age, and no others."""

import time

import pytest
import samples
from stored_runs import filed, project_run

from mlproject import main
from tracking import schema
from tracking.upload.delivery import reap
from tracking.upload.upload import upload

HOUR_S = 3600.0
OURS = {schema.KIND: "measurement"}


def running(embedded, age_h=0.0, **tags):
    started_ms = int((time.time() - age_h * HOUR_S) * 1000)
    return embedded.create_run("0", start_time=started_ms, tags=tags).info.run_id


def ids(runs):
    return [run.info.run_id for run in runs]


def test_a_run_of_ours_is_ended_past_the_age_alone(embedded):
    old, young = running(embedded, 3, **OURS), running(embedded, 1, **OURS)
    ended, left = reap(2 * HOUR_S)
    assert (ids(ended), ids(left)) == ([old], [young])
    run = embedded.get_run(old)
    assert run.info.status == "KILLED"
    assert run.data.tags[schema.OUTCOME] == "interrupted"
    assert "sync --reap" in run.data.tags[schema.REASON]
    assert embedded.get_run(young).info.status == "RUNNING"
    assert ids(reap(2 * HOUR_S)[0]) == []


def test_a_run_that_mlflow_run_of_this_project_left_is_ended(embedded):
    made = project_run(embedded)
    assert ids(reap(0.0)[0]) == [made]


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"mlflow.source.type": "PROJECT", "mlflow.source.name": "/somebody/their-project"},
        {"mlflow.source.type": "PROJECT", "mlflow.source.name": "https://git.example/their#x"},
        {"mlflow.source.type": "PROJECT"},
    ],
)
def test_runs_of_other_programs_are_not_looked_at(embedded, source):
    run_id = running(embedded, 999, team="theirs", **source)
    assert reap(1.0) == ([], [])
    assert embedded.get_run(run_id).info.status == "RUNNING"


def test_a_run_that_was_ended_is_completed_by_its_record(embedded, tmp_path):
    folder, record = filed(tmp_path, samples.run_record())
    cut = running(embedded, 3, **OURS, **{schema.RECORD_ID: record.record_id})
    reap(HOUR_S)
    assert upload(folder, record) == cut
    run = embedded.get_run(cut)
    assert run.info.status == "FINISHED"
    assert schema.REASON not in run.data.tags


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
