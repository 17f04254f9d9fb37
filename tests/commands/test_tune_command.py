"""`mlproject tune` as a user types it, with real workers and a real tracking store."""

import json
import re
import signal
from functools import partial

import pytest
from simulated_device import START, Device, environment
from stored_runs import project_run
from worker_processes import small_run

from bench.errors import Unknown
from bench.records.folders import read_records
from campaigns.search import Limits, tune
from campaigns.trials import measure_here
from commands.tune import TuneProgress, tune_result
from tracking import schema
from tracking.tracked_runs import search_runs

TINY = (
    *("--arch", "crashing_models:small", "--backend", "cpu", "--image-size", "32"),
    *("--batch-size", "4", "--warmup-iters", "1", "--iters", "5", "--explain", "false"),
)
CAMPAIGN = "tune-crashing_models.small-fp32"


@pytest.fixture
def place(mlproject_command):
    return mlproject_command.folder


@pytest.fixture
def tuned(mlproject_command):
    """A tuning to its end: exit code, output, error output."""
    return partial(mlproject_command, "tune")


def runs(kind):
    return search_runs(f"tags.`{schema.KIND}` = '{kind}'")


def written(place, campaign=CAMPAIGN):
    return json.loads((place / "reports" / campaign / "tuning.json").read_text())


@pytest.mark.slow
def test_ctrl_c_keeps_every_trial_as_a_tracked_run_and_the_next_tuning_goes_on(
    place, mlproject_command, tuned, embedded
):
    made = [project_run(embedded) for _ in "ab"]
    process = mlproject_command.start("tune", *TINY, "--budget", "600", MLFLOW_RUN_ID=made[0])
    while not (line := process.stderr.readline()).startswith("start: "):
        assert line, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "the same command goes on from here" in err
    assert out.startswith("mlproject run --arch crashing_models:small --backend cpu")
    tuning = written(place)
    assert tuning["interrupted"]
    records = read_records(place / "records")
    assert tuning["trials"][0]["record_id"] == records[0].record_id
    assert tuning["trials"][0]["outcome"] == records[0].outcome == "ok"
    tracked = runs("measurement")
    assert {run.tags[schema.RECORD_ID] for run in tracked} == {r.record_id for r in records}
    assert {run.tags[schema.CAMPAIGN] for run in tracked} == {CAMPAIGN}

    # Another folder: what was measured is known from the server alone.
    elsewhere = {"MLPROJECT_RECORDS": str(place / "another")}
    code, out, err = tuned(*TINY, "--budget", "1", MLFLOW_RUN_ID=made[1], **elsewhere)
    assert code == 0, err
    again = written(place)
    assert again["trials"][0]["record_id"] == records[0].record_id
    assert again["trials"][0]["reused"]
    assert "from earlier sessions" in out
    [last] = [run for run in runs("tune") if run.run_id == made[1]]
    assert last.status == "FINISHED"
    assert last.tags[schema.CAMPAIGN] == CAMPAIGN
    assert "mlproject run --arch" in last.tags[schema.NOTE]
    files = {each.path for each in embedded.list_artifacts(last.run_id, "report")}
    names = ("tuning.md", "tuning.json", "tuning.png", "trials.csv")
    assert files >= {f"report/{name}" for name in names}


@pytest.mark.long
def test_a_start_that_crashes_is_recorded_and_decides_the_exit_code(place, tuned, embedded):
    broken = [*TINY, "--arch", "crashing_models:raises_later", "--iters", "20"]
    code, _, err = tuned(*broken)
    assert code == 1
    assert "the start was not measured: crashed: RuntimeError: the model had enough" in err
    [record] = read_records(place / "records")
    assert record.outcome == "crashed"
    code, _, err = tuned(*broken)
    assert code == 1
    assert "--retry-failed measures it again" in err
    assert len(read_records(place / "records")) == 1
    assert tuned(*broken, "--retry-failed")[0] == 1
    assert len(read_records(place / "records")) == 2


@pytest.mark.slow
def test_a_worker_past_its_time_is_ended_and_its_record_kept(place):
    delivered = []
    config, records = small_run(iters=10**6, max_seconds="none"), place / "records"
    deliver = lambda folder, record: delivered.append(record)  # noqa: E731
    record = measure_here(records, deliver, lambda event: None, config, 1.0)
    assert record.outcome == "interrupted"
    assert delivered == [record] == read_records(records)


@pytest.mark.usefixtures("unpainted")
def test_a_tuning_that_lost_a_record_does_not_end_well(tuned, monkeypatch):
    measure = Device(lambda knobs: 16.0)

    def launch(config, folder, on_event, deadline_s):
        folder.problem = "records/x: cannot be written"
        return measure(config, 600.0)

    monkeypatch.setattr("campaigns.trials.launch_measurement", launch)
    asked = ("--arch", "resnet18", "--backend", "cpu", "--budget", "0.1", "--no-track")
    assert tuned(*asked)[0] == 1
    assert len(measure.records) == 1


def test_each_comparison_is_a_line_and_the_result_a_table(capsys):
    def fails(knobs):
        return ("crashed", "no C++ compiler") if knobs["compile"] == "default" else None

    device = Device(lambda knobs: 16.0 * knobs["threads"], fails, noise=0.0)
    with TuneProgress(START, 1500.0, 0.0) as progress:
        result = tune(
            *(START, environment(), device, Limits(1500.0, fixed_batch=True)),
            watch=progress,
            clock=device.clock,
        )
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "start: 16 images/s"
    assert "compile=default: failed (crashed: no C++ compiler)" in lines
    assert any(line.startswith("threads=2: adopted, 2.000 times") for line in lines)
    shown = tune_result(result, Unknown("no ceiling")).text("text")
    assert shown.startswith("mlproject run --arch resnet18 --backend cpu --threads 2\n")
    assert "distance to the roof unknown: no ceiling" in shown
    assert re.search(r"threads +2 +1 \(auto\) +2 +2 +\d", shown)


def test_a_budget_that_may_hold_no_comparison_is_said_before_anything_is_measured(
    tuned, monkeypatch
):
    def interrupted(records):
        raise KeyboardInterrupt

    monkeypatch.setattr("commands.tune.wait_for_others", interrupted)
    for budget, said in (("90", True), ("200", False)):
        code, _, errors = tuned("--arch", "resnet18", "--backend", "cpu", "--budget", budget)
        assert code == 130
        assert ("may hold the start and no comparison" in errors) == said
