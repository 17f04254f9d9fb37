"""The SkyPilot task: read by SkyPilot itself, and its commands run with stand-ins."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from programs import program
from rented_machine import asked, hang_in_sweep, make_project

from bootstrap.setup import child_environment

PROJECT = Path(__file__).resolve().parent.parent.parent
FILE = PROJECT / "deploy" / "skypilot.yaml"
TASK = yaml.safe_load(FILE.read_text("utf-8"))
#: In an environment of its own: it asks for an older click and an older uvicorn than ours.
SKYPILOT = "skypilot==0.14.1"

READ = """
import json, sys
import sky
from sky.utils import dag_utils

def read(**envs):
    [task] = dag_utils.load_chain_dag_from_yaml(
        sys.argv[1], env_overrides=list(envs.items()),
        secret_overrides=[("MLFLOW_TRACKING_PASSWORD", "hidden word")],
    ).tasks
    return task

try:
    read()
    refusal = None
except ValueError as error:
    refusal = str(error)
task = read(RECORDS_BUCKET="gs://my-bucket", SWEEP="smoke")
print(json.dumps({
    "refusal": refusal,
    "accelerators": sorted(name for each in task.resources for name in each.accelerators),
    "clouds": [str(each.cloud) for each in task.resources if each.cloud is not None],
    "autostop": [
        [each.autostop_config.enabled, each.autostop_config.down] for each in task.resources
    ],
    "in_any_order": isinstance(task.resources, set),
    "envs": task.envs,
    "secrets": list(task.secrets),
    "shown": str(task.to_yaml_config(use_user_specified_yaml=True)),
    "mounts": {path: store.source for path, store in task.storage_mounts.items()},
    "workdir": task.workdir,
}))
"""


@pytest.fixture(scope="module")
def skypilot(tmp_path_factory):
    """What SkyPilot makes of the task; no cloud is asked."""
    folder = tmp_path_factory.mktemp("skypilot")
    environ = child_environment()
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", folder / "e"], env=environ, check=True)
    python = folder / "e" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [*uv, "pip", "install", "--quiet", "--python", python, SKYPILOT]
    subprocess.run(install, env=environ, check=True)
    environ |= {"HOME": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [python, "-c", READ, FILE], env=environ, cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_skypilot_takes_any_gpu_on_any_cloud_takes_it_down_and_keeps_the_password(skypilot):
    assert {"T4", "L4", "A10G", "A100", "H100"} <= set(skypilot["accelerators"])
    assert skypilot["clouds"] == []
    assert skypilot["in_any_order"]
    assert skypilot["autostop"]
    assert all(each == [True, True] for each in skypilot["autostop"])
    # without a bucket the records would not come home
    assert "RECORDS_BUCKET" in skypilot["refusal"]
    assert skypilot["mounts"] == {"/records-bucket": "gs://my-bucket"}
    assert skypilot["workdir"] == "."
    assert skypilot["envs"]["SWEEP"] == "smoke"
    assert skypilot["secrets"] == ["MLFLOW_TRACKING_PASSWORD"]
    assert "MLFLOW_TRACKING_PASSWORD" not in skypilot["envs"]
    assert "hidden word" not in skypilot["shown"]


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
