"""`mlproject sweep` as a user types it, with real workers and a real tracking store."""

import re
import signal
from collections import Counter
from functools import partial

import pytest
import samples
from servers import free_port, mlflow_server
from stored_runs import project_run

from bench.config import RunConfig
from campaigns.plan import Plan, Turn
from commands.console.recorded import open_delivery
from commands.sweep import SweepProgress, sweep_result
from tracking import schema
from tracking.tracked_runs import download_record, search_runs

MATRIX = """
name: tiny
repeats: 2
defaults: {backend: cpu, image_size: 32, warmup_iters: 1, iters: 5}
blocks:
  - arch: crashing_models:small
    batch_size: 2
"""
ALL = {("2", "1"): 1, ("2", "2"): 1}


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
def first_run_measured(mlproject_command, place):
    """A sweep in a process of its own, whose first run is measured and whose second has begun."""

    def start():
        process = mlproject_command.start("sweep", place / "tiny.yaml")
        while not (line := process.stderr.readline()).startswith("crashing_models:"):
            assert line, process.communicate()
        return process

    return start


def measured(wanted=f"tags.`{schema.KIND}` = 'measurement'"):
    """How many runs the server has of each batch size and repeat."""
    return Counter((run.params["batch_size"], run.params["repeat"]) for run in search_runs(wanted))


@pytest.mark.slow
def test_a_sweep_is_planned_measured_once_and_tracked_once(place, swept, embedded):
    code, out, _ = swept("--dry-run")
    assert code == 0
    assert "2 runs" in out
    assert "unknown for 2" in out
    assert not (place / "records").exists()

    code, _, err = swept("--profile", "torch", "--profile", "ncu")
    assert code == 2
    assert err.splitlines()[-1].startswith("mlproject: profile=ncu: ncu counts on NVIDIA GPUs")
    assert not (place / "records").exists()

    # Without its server it loses nothing.
    code, out, err = swept(MLFLOW_TRACKING_URI=f"http://127.0.0.1:{free_port()}")
    assert code == 3
    assert out.count(" ok ") == 2
    assert "mlproject sync" in err
    assert search_runs() == []
    assert "for 2 of them" in swept("--dry-run")[1]

    # From its records; then from the server alone, as the sweep of a run that `mlflow run` made.
    own = project_run(embedded)
    elsewhere = {"MLPROJECT_RECORDS": str(place / "another"), "MLFLOW_RUN_ID": own}
    for environment in ({}, elsewhere):
        code, out, _ = swept(**environment)
        assert code == 0
        assert out.count("measured before") == 2
        assert measured() == ALL
    assert not (place / "another").exists()
    [sweep] = search_runs(f"tags.`{schema.KIND}` = 'sweep'")
    assert (sweep.run_id, sweep.status) == (own, "FINISHED")
    assert "small fp32 bs2" in sweep.tags[schema.NOTE]
    for run in search_runs():
        assert run.tags[schema.CAMPAIGN] == "tiny"
        if run.run_id != own:
            assert run.name.endswith(f"_bs2_run{run.params['repeat']}")
            assert download_record(run.run_id).outcome == "ok"


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_says_how_to_go_on_and_failures_decide_the_exit_code(
    place, swept, first_run_measured, embedded
):
    (place / "tiny.yaml").write_text(
        MATRIX.replace("repeats: 2", "repeats: 1")
        + "  - {arch: 'crashing_models:raises_later', batch_size: 2}\n"
    )
    process = first_run_measured()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "the same command takes them up" in err
    for before in (1, 2):
        code, out, err = swept()
        assert code == 1
        assert out.count("measured before") == before
        assert "the model had enough" in err
    assert measured("tags.`mlproject.outcome` = 'ok'") == {("2", "1"): 1}
    assert measured("tags.`mlproject.outcome` = 'crashed'").total() == 1


@pytest.mark.long
def test_a_killed_sweep_is_taken_up_and_the_server_has_each_run_once(
    place, swept, first_run_measured, monkeypatch
):
    with mlflow_server(place) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        process = first_run_measured()
        process.kill()
        process.communicate()
        code, out, _ = swept()
        assert code == 0
        assert out.count("measured before") in (1, 2)  # two where the orphan measured to its end
        assert measured() == ALL
        assert {run.status for run in search_runs()} == {"FINISHED"}


def test_a_matrix_that_fits_no_device_here_is_planned_and_not_measured(
    place, swept, mlproject_command, monkeypatch
):
    here = (samples.environment(),)  # of a CPU
    monkeypatch.setattr("commands.sweep.identify_machine", lambda env: here)
    block = "{name: apple, backend: mps, compile: [none, default]}"
    (place / "tiny.yaml").write_text(f"repeats: 2\nblocks:\n  - {block}\n")
    code, _, err = swept()
    assert code == 2
    [line] = err.strip().splitlines()
    assert "none of its blocks fits this machine, which has cpu" in line
    assert "(apple: needs mps; 0 of 4 runs are here); --dry-run shows its runs" in line

    code, out, err = swept("--dry-run")
    assert (code, err) == (0, "")
    assert re.search(r"apple +an Apple GPU \(mps\) +4 +0", out)
    assert "0 runs on this machine" in out
    assert "4 runs not here, on a machine with an Apple GPU (mps)" in out
    assert out.count("resnet18 fp32 bsauto mps compile=default run") == 2
    assert not (place / "records").exists()

    # The project's own matrices can be looked at anywhere; a block that is here is marked.
    assert "216 runs not here" in mlproject_command("sweep", "datacenter", "--dry-run")[1]
    _, out, _ = mlproject_command("sweep", "classic", "--dry-run")
    assert re.search(r"CPU +a CPU \(cpu\) +27 +27", out)
    assert "27 runs on this machine" in out
    code, _, err = swept("--backend", "cuda", "--dry-run")
    assert (code, err.count("\n")) == (2, 1)
    assert "backend='cuda': no block" in err


def test_each_run_that_ends_has_a_line_with_its_rate_and_the_time_left(capsys):
    turn = Turn.of(samples.run_record())
    with SweepProgress(Plan((turn.config,) * 2, {}, ())) as progress:
        progress.ended(turn)
        progress.ended(turn)
    first, last = capsys.readouterr().err.splitlines()
    assert re.search(r"  ok  [\d.]+ images/s  about 0 s left$", first)
    assert re.search(r"  ok  [\d.]+ images/s$", last)


def ended(outcome):
    if outcome == "ok":
        return Turn.of(samples.run_record())
    if outcome == "skipped":
        return Turn(RunConfig(), "skipped", None, "batch 8 of it ran out of memory", None)
    if outcome == "lost":
        return Turn.of(samples.run_record(), "records/x: cannot be written")
    return Turn.of(samples.failed_record(outcome))


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [(["ok", "ok"], 0), *((["ok", what], 1) for what in ("oom", "skipped", "crashed", "lost"))],
)
def test_a_sweep_that_measured_not_all_that_it_was_asked_says_so(outcomes, code):
    turns = [ended(outcome) for outcome in outcomes]
    untracked = open_delivery("c", "sweep", tracked=False)
    assert sweep_result(turns, len(turns), untracked, interrupted=False).exit_code == code
