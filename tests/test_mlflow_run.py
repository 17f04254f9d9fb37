"""The literal `mlflow run .`, with neither conda nor pyenv on the path."""

from pathlib import Path

import project_runs
import pytest

from bench.records.folders import read_records
from tracking import schema
from tracking.projects import make_environment
from tracking.reading.tracked_runs import download_record, search_runs

PROJECT = Path(__file__).resolve().parent.parent
SMALL = {"batch_size": "2", "image_size": "64", "warmup_iters": "1", "iters": "5"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _environment():
    make_environment(PROJECT)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A small image folder whose path would do harm if a shell read it."""
    from click.testing import CliRunner

    from commands.keep.dataset import command

    folder = tmp_path_factory.mktemp("images") / "my images; $(touch hacked) `touch hacked`"
    options = ["--classes", "2", "--images-per-class", "4"]
    done = CliRunner().invoke(command, ["generate", "--out", str(folder), *options])
    assert done.exit_code == 0, done.output
    return folder


def mlflow_run(tmp_path, *options, **parameters):
    return project_runs.mlflow_run(tmp_path, *options, **{**SMALL, **parameters})


def test_it_measures_real_images_into_one_tracked_run(tmp_path, images):
    done = mlflow_run(tmp_path, arch="resnet18", precision="amp", data=images, workers="1")
    assert done.returncode == 0, done.stderr
    [run] = search_runs()
    assert run.status == "FINISHED"
    assert run.tags[schema.KIND] == "measurement"
    assert run.params["resolved_batch_size"] == "2"
    assert run.metrics["throughput_images_per_s"] > 0
    [record] = read_records(tmp_path / "records")
    assert download_record(run.run_id) == record
    assert record.config.data == str(images)
    assert record.outcome == "ok"
    assert not list(tmp_path.rglob("hacked"))
    assert not (PROJECT / "hacked").exists()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"arch": "resnet5"}, "arch='resnet5'"),
        ({"arch": "$(touch hacked)"}, "$(touch hacked)"),
        ({"batch_size": "0; touch hacked"}, "0; touch hacked"),
        ({"data": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_a_wrong_value_ends_the_run_with_its_reason_and_runs_nothing(tmp_path, parameters, words):
    done = mlflow_run(tmp_path, **parameters)
    assert done.returncode != 0
    assert words in done.stderr
    [run] = search_runs()
    assert run.status == "FAILED"
    assert words in run.tags[schema.REASON]
    assert not list(tmp_path.rglob("hacked"))
    assert not (PROJECT / "hacked").exists()


def test_a_corrupt_image_is_named_and_ends_the_run(tmp_path, images):
    import shutil

    spoiled = tmp_path / "spoiled"
    shutil.copytree(images, spoiled)
    victim = next(spoiled.rglob("*.jpg"))
    victim.write_bytes(victim.read_bytes()[:1000])
    done = mlflow_run(tmp_path, data=spoiled)
    assert done.returncode != 0
    assert victim.name in done.stderr
    [run] = search_runs()
    assert run.status == "FAILED"


def test_env_manager_local_uses_the_environment_at_hand(tmp_path):
    done = mlflow_run(tmp_path, "--env-manager", "local")
    assert done.returncode == 0, done.stderr
    [run] = search_runs()
    assert run.status == "FINISHED"
