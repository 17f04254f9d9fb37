"""`mlproject profile` as a user types it: a tracked run of its own beside the timed one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_perf import install

from tracking import schema
from tracking.reading.tracked_runs import download_record, search_runs
from tracking.store import open_client

PROJECT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow
SMALL = (
    *("--arch", "crashing_models:small", "--backend", "cpu", "--image-size", "32"),
    *("--batch-size", "4", "--warmup-iters", "1", "--iters", "5"),
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests" / "bench"))
    monkeypatch.setenv("MLPROJECT_RECORDS", str(tmp_path / "records"))
    programs = tmp_path / "programs"
    programs.mkdir()
    install(programs)
    own = [str(programs), str(Path(sys.executable).parent), "/usr/bin", "/bin"]
    monkeypatch.setenv("PATH", os.pathsep.join(own))
    return tmp_path


def call(place, *arguments):
    done = subprocess.run(
        [sys.executable, str(PROJECT / "mlproject.py"), *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def answer(place, *arguments):
    done = call(place, *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_profile_is_a_tracked_run_linked_to_the_timed_one(place):
    timed = answer(place, "run", *SMALL)
    profile = answer(place, "profile", *SMALL)
    assert profile["explains"] == Path(timed["record"]).name
    assert profile["ipc"] == 2.5
    assert profile["verdict"].startswith("clean")
    [run] = search_runs("tags.`mlproject.kind` = 'profile'")
    assert run.run_id == profile["run_id"]
    assert run.status == "FINISHED"
    assert run.tags[schema.TIMED_RUN_ID] == timed["run_id"]
    assert run.tags[schema.TIMED_RECORD_ID] == profile["explains"]
    assert run.metrics["ipc"] == 2.5
    assert run.metrics["ops_matched_share"] > 0.5
    assert run.params["arch"] == "crashing_models:small"
    assert download_record(run.run_id).ops.ops
    names = {artifact.path for artifact in open_client().list_artifacts(run.run_id)}
    assert {"record.json", "ops.csv", "environment.json", "perf"} <= names
    again = answer(place, "profile", "--of", profile["explains"], "--tool", "torch")
    assert again["explains"] == profile["explains"]
    assert "no cpu_counters" in again


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tool", "nsys"], ["nsys", "ncu"]),
        (["--of", "20200101T000000Z-00000000"], ["no measurement"]),
        (["--of", "x", "--arch", "vgg16"], ["arch='vgg16'", "--of"]),
        (["--arch", "resnet5"], ["resnet5"]),
        (["--tool", "ncu", *SMALL], ["ncu", "cpu"]),
    ],
)
def test_what_cannot_be_is_one_line(place, arguments, words):
    done = call(place, "profile", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr


def test_mlflow_run_starts_a_profile(place):
    extra = {"arch": "crashing_models:small", "backend": "cpu", "image_size": 32, "batch_size": 4}
    extra |= {"warmup_iters": 1, "iters": 5}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mlflow", "run", str(PROJECT), "-e", "profile"),
            *("--env-manager", "local", "-P", "tool=torch"),
            *(f"-P{name}={value}" for name, value in extra.items()),
        ],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    [run] = search_runs()
    assert run.tags[schema.KIND] == "profile"
    assert run.status == "FINISHED"
    assert run.params["image_size"] == "32"
