"""`mlproject profile` as a user types it: a tracked run of its own beside the timed one."""

import json
import os
import sys
from pathlib import Path

import pytest
from scripted_perf import install

from tracking import schema
from tracking.tracked_runs import download_record, search_runs

SMALL = (
    *("--arch", "crashing_models:small", "--backend", "cpu", "--image-size", "32"),
    *("--batch-size", "4", "--warmup-iters", "1", "--explain", "false", "--iters", "5"),
)


@pytest.fixture
def answer(mlproject_command, monkeypatch):
    """What a command that succeeds says as JSON, where perf answers as scripted."""
    programs = mlproject_command.folder / "programs"
    programs.mkdir()
    install(programs)
    own = [str(programs), str(Path(sys.executable).parent), "/usr/bin", "/bin"]
    monkeypatch.setenv("PATH", os.pathsep.join(own))

    def answer(*arguments):
        code, out, err = mlproject_command(*arguments, "--format", "json")
        assert code == 0, err
        return json.loads(out)

    return answer


@pytest.mark.slow
def test_a_profile_is_a_tracked_run_linked_to_the_timed_one(answer, embedded):
    def artifacts(run):
        return {artifact.path for artifact in embedded.list_artifacts(run.run_id)}

    timed = answer("run", *SMALL)
    # a window of another length
    profile = answer("profile", *SMALL[:-1], "7", "--tool", "perf")
    assert profile["explains"] == Path(timed["record"]).name
    assert profile["ipc"] == 2.5
    assert not profile["verdict"].startswith("invalid")
    [run] = search_runs("tags.`mlproject.kind` = 'profile'")
    assert run.run_id == profile["run_id"]
    assert run.status == "FINISHED"
    assert run.tags[schema.TIMED_RUN_ID] == timed["run_id"]
    assert run.tags[schema.TIMED_RECORD_ID] == profile["explains"]
    assert run.metrics["ipc"] == 2.5
    assert run.params["arch"] == "crashing_models:small"
    assert "perf" in artifacts(run)

    again = answer("profile", "--of", timed["run_id"], "--tool", "torch")
    assert again["explains"] == profile["explains"]
    assert "no cpu_counters" in again
    assert again["op 1"].endswith("of all ops")
    assert Path(again["ops"]).is_file()
    [run] = [run for run in search_runs() if run.run_id == again["run_id"]]
    assert run.metrics["ops_matched_share"] > 0.5
    assert download_record(run.run_id).ops.ops
    assert {"record.json", "ops.csv", "environment.json", "trace.json.gz"} <= artifacts(run)


@pytest.mark.slow
def test_a_tool_that_cannot_work_here_is_refused(mlproject_command):
    code, _, err = mlproject_command("profile", "--tool", "ncu", *SMALL)
    assert code == 2
    [line] = err.strip().splitlines()
    assert "ncu" in line
    assert "cpu" in line
