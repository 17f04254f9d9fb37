"""`mlproject sweep` as a user types it, against a real tracking server."""

import signal
from collections import Counter
from functools import partial

import pytest
from project_runs import mlflow_run
from servers import free_port, mlflow_server

from mlproject import main
from tracking import schema
from tracking.reading.tracked_runs import download_record, search_runs

pytestmark = pytest.mark.slow

MATRIX = """
name: tiny
repeats: 2
defaults: {backend: cpu, image_size: 32, warmup_iters: 1, iters: 5}
blocks:
  - arch: crashing_models:small
    batch_size: 2
"""


@pytest.fixture
def place(mlproject_command):
    """The folder of the sweep, its records and its matrix."""
    (mlproject_command.folder / "tiny.yaml").write_text(MATRIX)
    return mlproject_command.folder


@pytest.fixture
def swept(mlproject_command, place):
    """A sweep of the matrix to its end: exit code, output, error output."""
    return partial(mlproject_command, "sweep", place / "tiny.yaml")


@pytest.fixture
def first_run_started(mlproject_command, place):
    """A sweep whose first run is measured and whose second has begun."""

    def start():
        process = mlproject_command.start("sweep", place / "tiny.yaml")
        while not (line := process.stderr.readline()).startswith("crashing_models:small"):
            assert line, process.communicate()
        return process

    return start


def runs_on_server():
    return Counter(
        (run.params["batch_size"], run.params["repeat"])
        for run in search_runs()
        if run.tags[schema.KIND] == "measurement"
    )


ALL = {("2", "1"): 1, ("2", "2"): 1}


def test_every_repeat_becomes_one_tracked_run_which_the_server_alone_knows_too(place, swept):
    code, out, _ = swept()
    assert code == 0
    assert runs_on_server() == ALL
    for run in search_runs():
        assert run.tags[schema.CAMPAIGN] == "tiny"
        assert run.name.endswith(f"_bs{run.params['batch_size']}_run{run.params['repeat']}")
        assert download_record(run.run_id).outcome == "ok"
    assert out.count(" ok ") == 2
    for records in ("records", "another"):
        code, out, _ = swept(MLPROJECT_RECORDS=str(place / records))
        assert code == 0
        assert out.count("measured before") == 2
        assert runs_on_server() == ALL
    assert not (place / "another").exists()


def test_a_killed_sweep_is_taken_up_and_the_server_has_each_run_once(
    place, swept, first_run_started, monkeypatch
):
    with mlflow_server(place) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        process = first_run_started()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()
        code, out, _ = swept()
        assert code == 0
        assert out.count("measured before") in (1, 2)  # two where the orphan measured to its end
        assert runs_on_server() == ALL
        assert {run.status for run in search_runs()} == {"FINISHED"}


def test_ctrl_c_records_the_run_and_says_how_to_go_on(swept, first_run_started):
    process = first_run_started()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command takes them up" in err
    assert swept()[0] == 0
    ok = Counter(
        (run.params["batch_size"], run.params["repeat"])
        for run in search_runs("tags.`mlproject.outcome` = 'ok'")
    )
    assert ok == ALL


def test_a_sweep_without_its_server_loses_nothing(swept):
    nowhere = f"http://127.0.0.1:{free_port()}"
    code, _, err = swept(MLFLOW_TRACKING_URI=nowhere)
    assert code == 3
    assert "mlproject sync" in err
    assert search_runs() == []
    code, out, _ = swept()
    assert code == 0
    assert out.count("measured before") == 2
    assert runs_on_server() == ALL


def test_failures_decide_the_exit_code_and_are_not_repeated(place, swept):
    matrix = MATRIX.replace("small", "raises_later").replace("repeats: 2", "repeats: 1")
    (place / "tiny.yaml").write_text(matrix)
    code, out, _ = swept("--no-track")
    assert code == 1
    assert out.count("crashed") == 1
    code, out, err = swept("--no-track")
    assert code == 1
    assert out.count("measured before") == 1
    assert "the model had enough" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "colour=red"], "colour=red"),
        (["--set", "iters=0"], "iters='0'"),
        (["--campaign", "two words"], "two words"),
        (["--env", "a/b"], "a/b"),
    ],
)
def test_wrong_values_are_one_line(place, capsys, arguments, words):
    assert main(["sweep", str(place / "tiny.yaml"), *arguments]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert words in line


def test_a_matrix_that_fits_no_device_here_is_refused(place, capsys):
    (place / "tiny.yaml").write_text("blocks:\n  - {name: apple, backend: mps}\n")
    assert main(["sweep", str(place / "tiny.yaml")]) == 2
    err = capsys.readouterr().err
    assert "apple: needs mps" in err
    assert "none of its blocks fits" in err


def test_a_dry_run_measures_nothing_and_estimates(place, swept):
    code, out, _ = swept("--dry-run")
    assert code == 0
    assert "2 runs" in out
    assert "unknown for 2" in out
    assert not (place / "records").exists()
    assert swept("--no-track")[0] == 0
    assert "for 2 of them" in swept("--dry-run")[1]


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
