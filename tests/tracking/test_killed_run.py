"""`mlproject run` itself, with the server away or the command killed: nothing lost, all ended."""

import psutil
import pytest
from stored_runs import assert_one_run, project_run
from worker_processes import in_window

from bench.records.folders import RecordFolder
from mlproject import main
from tracking import schema
from tracking.connection import Server

pytestmark = pytest.mark.slow


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
