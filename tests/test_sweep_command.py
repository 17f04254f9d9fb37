"""`mlproject sweep` as a user types it, against a real tracking server."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from project_runs import mlflow_run
from servers import free_port, mlflow_server

from bench.records.folders import read_records
from tracking import schema
from tracking.reading.tracked_runs import download_record, search_runs

PROJECT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow

MATRIX = """
name: tiny
repeats: 2
defaults: {backend: cpu, image_size: 32, warmup_iters: 1, iters: 5}
blocks:
  - arch: crashing_models:small
    batch_size: [2, 4]
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests" / "bench"))
    monkeypatch.setenv("MLPROJECT_RECORDS", str(tmp_path / "records"))
    (tmp_path / "tiny.yaml").write_text(MATRIX)
    return tmp_path


def sweep(place, *arguments, **environment):
    command = [sys.executable, str(PROJECT / "mlproject.py"), "sweep", str(place / "tiny.yaml")]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=place,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def swept(place, *arguments, **environment):
    process = sweep(place, *arguments, **environment)
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def runs_on_server():
    return Counter(
        (run.params["batch_size"], run.params["repeat"])
        for run in search_runs()
        if run.tags[schema.KIND] == "measurement"
    )


ALL = {(batch, repeat): 1 for batch in ("2", "4") for repeat in ("1", "2")}


def test_every_configuration_and_repeat_becomes_one_tracked_run(place):
    code, out, _ = swept(place)
    assert code == 0
    assert runs_on_server() == ALL
    for run in search_runs():
        assert run.tags[schema.CAMPAIGN] == "tiny"
        assert run.name.endswith(f"_bs{run.params['batch_size']}_run{run.params['repeat']}")
        assert download_record(run.run_id).outcome == "ok"
    assert out.count(" ok ") == 4
    code, out, _ = swept(place)
    assert code == 0
    assert out.count("measured before") == 4
    assert runs_on_server() == ALL


def test_a_killed_sweep_is_taken_up_and_the_server_has_each_run_once(place, monkeypatch):
    with mlflow_server(place) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        process = sweep(place)
        while not (line := process.stderr.readline()).startswith("crashing_models:small"):
            assert line, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()
        code, out, _ = swept(place)
        assert code == 0
        assert out.count("measured before") in (1, 2)  # two where the orphan measured to its end
        assert runs_on_server() == ALL
        assert {run.status for run in search_runs()} == {"FINISHED"}


def test_the_server_alone_knows_what_was_measured(place):
    assert swept(place, "--limit", "1")[0] == 0
    code, out, _ = swept(place, MLPROJECT_RECORDS=str(place / "another"))
    assert code == 0
    assert out.count("measured before") == 2
    assert len(read_records(place / "another")) == 2
    assert runs_on_server() == ALL


def test_ctrl_c_records_the_run_and_says_how_to_go_on(place):
    process = sweep(place)
    while not (line := process.stderr.readline()).startswith("crashing_models:small"):
        assert line, process.communicate()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command takes them up" in err
    assert swept(place)[0] == 0
    ok = Counter(
        (run.params["batch_size"], run.params["repeat"])
        for run in search_runs("tags.`mlproject.outcome` = 'ok'")
    )
    assert ok == ALL


def test_a_sweep_without_its_server_loses_nothing(place):
    nowhere = f"http://127.0.0.1:{free_port()}"
    code, _, err = swept(place, "--limit", "1", MLFLOW_TRACKING_URI=nowhere)
    assert code == 3
    assert "mlproject sync" in err
    assert search_runs() == []
    code, out, _ = swept(place, "--limit", "1")
    assert code == 0
    assert out.count("measured before") == 2
    assert runs_on_server() == {("2", "1"): 1, ("2", "2"): 1}


def test_failures_are_told_by_the_exit_code(place):
    matrix = MATRIX.replace("crashing_models:small", "[crashing_models:raises_later, alexnet]")
    (place / "tiny.yaml").write_text(matrix.replace("batch_size: [2, 4]", "batch_size: 2"))
    code, out, _ = swept(place, "--set", "image_size=64", "--no-track")
    assert code == 1
    assert out.count("crashed") == 2
    assert out.count(" ok ") == 2
    code, out, err = swept(place, "--set", "image_size=64", "--no-track")
    assert code == 1
    assert out.count("measured before") == 4
    assert err.count("the model had enough") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "colour=red"], "colour=red"),
        (["--set", "iters=0"], "iters='0'"),
        (["--campaign", "two words"], "two words"),
        (["--env", "a/b"], "a/b"),
    ],
)
def test_wrong_values_are_one_line(place, arguments, words):
    code, _, err = swept(place, *arguments)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert words in err


def test_a_matrix_that_fits_no_device_here_is_refused(place):
    (place / "tiny.yaml").write_text("blocks:\n  - {name: apple, backend: mps}\n")
    code, _, err = swept(place)
    assert code == 2
    assert "apple: needs mps" in err
    assert "none of its blocks fits" in err


def test_a_dry_run_measures_nothing_and_estimates(place):
    code, out, _ = swept(place, "--dry-run")
    assert code == 0
    assert "4 runs" in out
    assert "unknown for 4" in out
    assert not (place / "records").exists()
    assert swept(place, "--limit", "1", "--no-track")[0] == 0
    assert "for 4 of them" in swept(place, "--dry-run")[1]


def test_mlflow_run_starts_a_sweep_of_flat_runs(place):
    asked = {"matrix": place / "tiny.yaml", "campaign": "from-mlflow", "limit": 1}
    done = mlflow_run(place, "-e", "sweep", "--env-manager", "local", **asked)
    assert done.returncode == 0, done.stderr
    assert runs_on_server() == {("2", "1"): 1, ("2", "2"): 1}
    [own] = search_runs("tags.`mlproject.kind` = 'sweep'")
    assert own.status == "FINISHED"
    assert own.tags[schema.CAMPAIGN] == "from-mlflow"
    assert "small fp32 bs2" in own.tags[schema.NOTE]
    assert {run.tags[schema.CAMPAIGN] for run in search_runs()} == {"from-mlflow"}
