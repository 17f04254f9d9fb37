"""Runs left RUNNING: ended when their process is gone, and left alone in any doubt."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import samples
from stored_runs import filed

from mlproject import main
from tracking import schema
from tracking.upload import owner
from tracking.upload.reap import reap
from tracking.upload.upload import upload

HOUR_S = 3600.0


@contextmanager
def alive(*words, **environment):
    """A process of this machine, with these words in its command line."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def gone():
    """The name of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    name = f"{process.pid}@{time.time():.2f}"
    process.wait()
    return name


def running(embedded, age_s=0.0, **tags):
    started_ms = int((time.time() - age_s) * 1000)
    return embedded.create_run("0", start_time=started_ms, tags=tags).info.run_id


def ours(process, host=None):
    return {
        schema.KIND: "measurement",
        schema.HOST: host or owner.this_host(),
        schema.PROCESS: process,
    }


@pytest.mark.parametrize("number", ["of none", "another process has now"])
def test_a_run_whose_process_is_gone_is_ended_with_the_reason(embedded, gone, number):
    run_id = running(embedded, **ours(gone if number == "of none" else f"{os.getpid()}@1000000.0"))
    [reaped] = reap()
    assert reaped.ended
    run = embedded.get_run(run_id)
    assert run.info.status == "KILLED"
    assert "is gone" in run.data.tags[schema.REASON]
    assert reap() == []


def test_a_run_whose_process_lives_is_left_however_old(embedded):
    running(embedded, 100 * HOUR_S, **{schema.KIND: "sweep"}, **owner.owner_tags())
    [reaped] = reap(older_than_s=1.0)
    assert not reaped.ended


@pytest.mark.parametrize(
    ("measured_h", "uploading_h", "ended"), [(1, 1, False), (3, 3, True), (99, 0, False)]
)
def test_a_run_of_another_machine_is_ended_only_past_the_age_given(
    embedded, measured_h, uploading_h, ended
):
    process = f"1@{time.time() - uploading_h * HOUR_S:.2f}"
    running(embedded, measured_h * HOUR_S, **ours(process, "f" * 12))
    assert [reaped.ended for reaped in reap()] == [False]
    assert [reaped.ended for reaped in reap(older_than_s=2 * HOUR_S)] == [ended]


@pytest.mark.parametrize("process", ["-1@0", "1@", "none", "9" * 30 + "@0"])
def test_a_tag_that_names_no_process_ends_no_other_run_s_reaping(embedded, gone, process):
    running(embedded, **ours(process))
    cut = running(embedded, **ours(gone))
    assert cut in {reaped.run_id for reaped in reap() if reaped.ended}


def test_a_run_that_ends_while_the_runs_are_looked_at_keeps_its_status(embedded, monkeypatch):
    run_id = running(embedded, **ours(f"{os.getpid()}@0"))

    def ends(*_):
        embedded.set_terminated(run_id)
        return False

    monkeypatch.setattr("tracking.upload.reap.is_running", ends)
    assert reap() == []
    assert embedded.get_run(run_id).info.status == "FINISHED"


def test_a_run_that_mlflow_left_when_it_could_not_make_the_environment_is_ended(embedded):
    # so old that no `mlflow run` which works on this machine now can have made it
    tags = {"mlflow.source.type": "PROJECT", "mlflow.source.name": "/p"}
    run_id = running(embedded, 10_000 * HOUR_S, **tags)
    [reaped] = reap()
    assert reaped.ended
    assert embedded.get_run(run_id).data.tags[schema.OUTCOME] == "interrupted"


def test_a_run_that_mlflow_started_for_a_living_process_or_makes_room_for_is_left(embedded):
    with alive("mlflow", "run", "."):  # which makes the environment
        run_id = running(embedded, **{"mlflow.source.type": "PROJECT"})
        [reaped] = reap()
        assert (reaped.ended, "`mlflow run` of that time" in reaped.why) == (False, True)
    with alive(MLFLOW_RUN_ID=run_id):
        [reaped] = reap()
        assert (reaped.ended, reaped.why) == (False, "a process of this machine works on it")


def test_runs_of_other_programs_are_not_looked_at(embedded):
    run_id = running(embedded, 999 * HOUR_S, team="theirs")
    assert reap(older_than_s=1.0) == []
    assert embedded.get_run(run_id).info.status == "RUNNING"


def test_a_second_run_of_a_record_that_is_whole_is_deleted(embedded, gone, tmp_path):
    folder, record = filed(tmp_path)
    whole = upload(folder, record)
    twin = running(embedded, **ours(gone), **{schema.RECORD_ID: record.record_id})
    [reaped] = reap()
    assert "deleted" in reaped.why
    assert embedded.get_run(twin).info.lifecycle_stage == "deleted"
    assert embedded.get_run(whole).info.lifecycle_stage == "active"


def test_a_run_that_was_ended_is_completed_by_its_record(embedded, gone, tmp_path):
    folder, record = filed(tmp_path, samples.run_record())
    cut = running(embedded, **ours(gone), **{schema.RECORD_ID: record.record_id})
    reap()
    assert upload(folder, record) == cut
    assert embedded.get_run(cut).info.status == "FINISHED"


def test_the_command_says_what_it_ended_and_what_it_left(
    embedded, gone, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    running(embedded, **ours(gone))
    running(embedded, 5 * HOUR_S, **ours(f"1@{time.time() - 5 * HOUR_S:.2f}", "f" * 12))
    assert main(["sync", "--reap"]) == 0
    out = capsys.readouterr().out
    assert "1 ended, 1 left running" in out
    assert main(["sync", "--reap", "--older-than", "2h"]) == 0
    assert "1 ended, 0 left running" in capsys.readouterr().out
