"""The SkyPilot task: what it asks for, and its commands run with stand-ins."""

import io
import os
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from programs import program
from rented_machine import asked, hang_in_sweep, make_project

PROJECT = Path(__file__).resolve().parent.parent.parent
FILE = PROJECT / "deploy" / "skypilot.yaml"
TASK = yaml.safe_load(FILE.read_text("utf-8"))


def test_any_gpu_on_any_cloud_will_do_goes_down_by_itself_and_the_password_is_a_secret():
    resources = TASK["resources"]
    assert {"T4", "L4", "A10G", "A100", "H100"} <= resources["accelerators"].keys()
    assert not {"cloud", "infra", "region"} & resources.keys()
    assert resources["autostop"]["down"]
    # without a bucket, which SkyPilot asks for, the records would not come home
    assert TASK["envs"]["RECORDS_BUCKET"] is None
    assert TASK["file_mounts"]["/records-bucket"]["source"] == "${RECORDS_BUCKET}"
    assert TASK["workdir"] == "."
    assert list(TASK["secrets"]) == ["MLFLOW_TRACKING_PASSWORD"]
    assert "MLFLOW_TRACKING_PASSWORD" not in TASK["envs"]


# Its commands

posix = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")


class Rented:
    """The folder of a rented machine in which the task's `run` runs."""

    def __init__(self, folder):
        self.bucket = folder / "bucket"
        self.bucket.mkdir()
        self.facts = folder / "facts"
        self.facts.mkdir()
        project = make_project(folder / "project")
        program(folder / "programs", "sleep", 'echo "$*" >>"$FACTS/slept"; mkdir "$BUCKET"')
        self._environ = {
            "PATH": f"{folder / 'programs'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "FACTS": str(self.facts),
            "BUCKET": str(self.bucket),
            "SKYPILOT_TASK_ID": "sky-1",
            **{name: str(value) for name, value in (TASK["envs"] | TASK["secrets"]).items()},
        }
        self._project = project
        subprocess.run(["make", "setup"], cwd=project, env=self._environ, check=True)

    def start(self, **envs):
        script = TASK["run"].replace("/records-bucket/", f"{self.bucket}/")
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self._project,
            env=self._environ | envs,
            start_new_session=True,
        )

    def home_coming(self):
        archive = (self.bucket / "records-sky-1.tar.gz").read_bytes()
        with tarfile.open(fileobj=io.BytesIO(archive)) as records:
            names = records.getnames()
            record = "records/r1/record.json"
            content = records.extractfile(record).read().decode() if record in names else None
        return content, (self.bucket / "records-sky-1.exit-code").read_text()


@pytest.fixture
def rented(tmp_path):
    return Rented(tmp_path)


@posix
def test_it_sweeps_and_the_records_come_home(rented):
    given = {"MLFLOW_TRACKING_URI": "https://example.org", "MLFLOW_TRACKING_USERNAME": "me"}
    password = {"MLFLOW_TRACKING_PASSWORD": "hidden word"}
    assert rented.start(SWEEP="smoke --limit 2", **given, **password).wait() == 0
    assert asked(rented.facts)[-1] == "sweep smoke --limit 2"
    assert rented.home_coming() == ("measured\n", "0\n")
    assert (rented.facts / "credentials").read_text() == (
        "uri=https://example.org user=me password=hidden word\n"
    )


@posix
def test_an_empty_setting_is_none_at_all_and_a_bucket_that_is_away_is_waited_for(rented):
    rented.bucket.rmdir()
    assert rented.start().wait() == 0
    assert asked(rented.facts)[-1] == "sweep --no-track classic --backend cuda"
    assert (rented.facts / "credentials").read_text() == "uri=none user=none password=none\n"
    assert (rented.facts / "slept").read_text() == "60\n"
    assert rented.home_coming() == ("measured\n", "0\n")


@posix
@pytest.mark.parametrize(
    ("fact", "code", "record"), [("sweep-code", 1, "measured\n"), ("no-gpu", 2, None)]
)
def test_a_sweep_that_fails_comes_home_with_its_code(rented, fact, code, record):
    (rented.facts / fact).write_text(str(code))
    assert rented.start().wait() == code
    assert rented.home_coming() == (record, f"{code}\n")


@posix
def test_a_task_that_is_cancelled_brings_its_records(rented):
    started = hang_in_sweep(rented.facts)
    process = rented.start()
    started.read_text()
    # `sky cancel` signals the whole group; timeout makes one of its own for what it runs
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 143
    assert rented.home_coming() == ("interrupted\n", "143\n")
