"""The literal `mlflow run .`, with neither conda nor pyenv on the path."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import samples
from programs import copy_project
from stored_runs import filed
from worker_processes import in_window

from bench.images import generate_image_folder
from bench.machine.environment import read_environment
from bench.records.folders import read_records
from bench.training.devices import open_device
from tracking import schema
from tracking.projects import link_environment
from tracking.tracked_runs import download_record, search_runs

PROJECT = Path(__file__).resolve().parent.parent.parent
SMALL = {"batch_size": 2, "image_size": 32, "warmup_iters": 1, "iters": 2}
TINY = {**SMALL, "arch": "crashing_models:small", "backend": "cpu"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A small image folder whose path would do harm if a shell read it."""
    folder = tmp_path_factory.mktemp("images") / "my images; $(touch hacked) `touch hacked`"
    generate_image_folder(folder, classes=2, images_per_class=4)
    return folder


@pytest.fixture
def place(mlproject_command, embedded, monkeypatch):
    """The folder in which `mlflow run` is typed, after a set-up."""
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(mlproject_command.folder / "envs"))
    link_environment(PROJECT, Path(sys.prefix))
    return mlproject_command.folder


def mlflow_words(*options, **parameters):
    """`mlflow run` of this project, as a user types it."""
    given = [f"-P{name}={value}" for name, value in parameters.items()]
    return [sys.executable, "-m", "mlflow", "run", str(PROJECT), *options, *given]


def started(place, command):
    """A process of `command` in `place`, with no environment manager on the path."""
    here = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return subprocess.Popen(
        command,
        cwd=place,
        env=os.environ | {"PATH": here},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def mlflow_run(place, *options, **parameters):
    """Run an entry point from `place` to its end."""
    process = started(place, mlflow_words(*options, **parameters))
    out, errors = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def test_it_measures_real_images_into_one_tracked_run_per_repeat(place, images, monkeypatch):
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", "WARNING")  # as in an environment of the set-up
    done = mlflow_run(place, **TINY, explain="false", data=images, workers="1", repeats="2")
    assert done.returncode == 0, done.stderr
    assert " INFO mlflow" not in done.stderr  # a line of 1,500 characters among them
    runs = search_runs()
    assert len(runs) == 2
    for run in runs:
        assert run.status == "FINISHED"
        assert run.tags[schema.KIND] == "measurement"
        assert run.params["resolved_batch_size"] == "2"
        assert run.metrics["throughput_images_per_s"] > 0
    records = read_records(place / "records")
    of_runs = {record.record_id: record for record in (download_record(r.run_id) for r in runs)}
    assert of_runs == {record.record_id: record for record in records}
    assert sorted(record.config.repeat for record in records) == [1, 2]
    assert len({record.config_id for record in records}) == 1
    assert {record.config.data for record in records} == {str(images)}
    assert {record.outcome for record in records} == {"ok"}
    mean = math.sqrt(math.prod(run.metrics["throughput_images_per_s"] for run in runs))
    assert f"2 repeats: {mean:.4g} images/s, 95 % interval" in done.stdout
    assert not list(place.rglob("hacked"))
    assert not (PROJECT / "hacked").exists()


@pytest.mark.parametrize(
    ("options", "parameters", "words"),
    [
        (["--env-manager", "local"], {"arch": "$(touch hacked)"}, "$(touch hacked)"),
        ([], {"seed": "0; touch hacked"}, "0; touch hacked"),
        ([], {"wrong_name": "1"}, "No such option '--wrong-name'"),
    ],
)
@pytest.mark.long
def test_a_wrong_value_ends_the_run_with_its_reason_and_runs_nothing(
    place, options, parameters, words
):
    done = mlflow_run(place, *options, **SMALL | parameters)
    assert done.returncode != 0
    assert words in done.stderr
    [run] = search_runs()
    assert run.status == "FAILED"
    assert words in run.tags[schema.REASON]
    assert not list(place.rglob("hacked"))
    assert not (PROJECT / "hacked").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("entry", "parameters"),
    [
        ("sweep", {"limit": 1}),
        ("tune", {"budget": 1}),
        ("profile", {"tool": "torch"}),
    ],
)
def test_other_entry_points_measure_into_the_run_that_mlflow_made(
    place, entry, parameters, mlproject_command
):
    if entry == "tune":  # goes on from its start, measured before: no budget is too short for that
        start = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
        assert mlproject_command("run", *start, "--campaign", "c")[0] == 0
    matrix = place / "tiny.yaml"
    matrix.write_text(f"blocks: [{json.dumps(TINY)}]\n")
    work = {"matrix": matrix} if entry == "sweep" else TINY
    local = ("-e", entry, "--env-manager", "local")
    done = mlflow_run(place, *local, **work, **parameters, campaign="c")
    assert done.returncode == 0, done.stderr
    [own] = search_runs(f"tags.`{schema.KIND}` = '{entry}'")
    assert own.status == "FINISHED"
    assert {run.tags[schema.CAMPAIGN] for run in search_runs()} == {"c"}


@pytest.mark.parametrize(
    ("entry", "under_make"),
    [
        ("main", False),
        pytest.param("main", True, marks=pytest.mark.long),
        pytest.param("sweep", False, marks=pytest.mark.long),
    ],
)
def test_sigterm_takes_the_worker_along_and_keeps_its_record(place, entry, under_make):
    asked = {**TINY, "iters": 10**7, "max_seconds": "none"}
    if entry == "sweep":
        (place / "long.yaml").write_text(f"blocks: [{json.dumps(asked)}]\n")
        asked = {"matrix": place / "long.yaml"}
    command = mlflow_words("-e", entry, "--env-manager", "local", **asked)
    if under_make:  # the shell between the two stays where a command follows or a variable precedes
        (place / "Makefile").write_text(f"run:\n\t@A=1 {shlex.join(command)}; true\n")
        command = ["make", "run"]
    process = started(place, command)
    owners = json.loads((in_window(process, place / "records").path / "owners.json").read_text())
    measuring = [psutil.Process(int(pid)) for pid in owners["processes"]]
    assert len(measuring) == 2  # the launcher and its worker
    process.terminate()
    left = psutil.wait_procs(measuring, timeout=300)[1]
    for each in left:
        each.kill()
    assert not left
    process.communicate(timeout=300)
    [record] = read_records(place / "records")
    assert record.outcome == "interrupted"
    [run] = search_runs(f"tags.`{schema.KIND}` = 'measurement'")
    # make ends the shell alone: MLflow lives on, and calls a run that ended with 130 failed.
    assert run.status == ("FAILED" if under_make else "KILLED")
    assert run.tags[schema.OUTCOME] == "interrupted"


@pytest.mark.long
def test_make_run_measures_two_precisions_and_reports_them(place, monkeypatch):
    clone = copy_project(place / "clone")
    (clone / ".venv").symlink_to(sys.prefix)
    link_environment(clone, Path(sys.prefix))
    # roofs of this very machine, which would take a minute to measure
    environment = read_environment(open_device("auto").info(), place, "auto")
    known = {"device": environment.device.name, "backend": environment.device.backend}
    roofs = samples.ceilings_record(environment=environment, ceilings=(samples.ceiling(**known),))
    filed(place / "records", roofs)
    recipe = (PROJECT / "Makefile").read_text("utf-8")
    small = re.search(r"^SMALL := ((?:.*\\\n)*.*)", recipe, re.M)[1].replace("\\\n", " ")
    small = small.replace("resnet18", "squeezenet1_1").replace("batch_size=16", "batch_size=2")
    made = [f"SMALL={small} -P image_size=64", f"IMAGES={place / 'images'}"]
    done = started(clone, ["make", "--old-file=setup", "run", *made])  # .venv is this one
    out, errors = done.communicate(timeout=900)
    assert done.returncode == 0, errors
    steps = [line for line in out.splitlines() if " of 5: " in line]
    assert [step[:1] for step in steps] == list("12345")
    records = [each for each in read_records(place / "records") if each.kind == "measurement"]
    assert [record.outcome for record in records] == ["ok", "ok"]
    assert {record.config.precision for record in records} == {"fp32", "amp"}
    assert {record.config.data for record in records} == {str(place / "images")}
    runs = search_runs(f"tags.`{schema.CAMPAIGN}` = 'make-run'")
    assert sorted(run.tags[schema.KIND] for run in runs) == ["measurement", "measurement", "report"]
    assert out.count("images/s, bound") == 2
    assert (clone / "reports" / "latest" / "report.html").is_file()
