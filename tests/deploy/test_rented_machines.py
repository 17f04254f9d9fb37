"""Rented machines: what SkyPilot and Ray are asked for, and the scripts there with stand-ins."""

import io
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from programs import program
from rented_machine import asked, commit, hang_in_sweep, make_project

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
TASK = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text("utf-8"))
CLUSTER = yaml.safe_load((DEPLOY / "ray-gcp.yaml").read_text("utf-8"))
posix = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")


class Rented:
    """The folder of a rented machine, set up, on which a script sweeps."""

    def __init__(self, folder):
        self.bucket, self.facts = folder / "bucket", folder / "facts"
        for made in (self.bucket, self.facts):
            made.mkdir()
        self.project = make_project(folder / "project")
        program(folder / "programs", "sleep", 'echo "$*" >>"$FACTS/slept"; mkdir "$BUCKET"')
        self.environ = {
            "PATH": f"{folder / 'programs'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "FACTS": str(self.facts),
            "BUCKET": str(self.bucket),
        }
        subprocess.run(["make", "setup"], cwd=self.project, env=self.environ, check=True)

    def measure(self, *words, **environ):
        """The exit code of what every rented machine does after set-up."""
        environ |= {"MLPROJECT_RECORDS": str(self.bucket / "records")}
        command = [self.project / "deploy" / "measure.sh", *words]
        return subprocess.run(command, env=self.environ | environ, check=False).returncode

    def start(self, **envs):
        """The SkyPilot task."""
        script = TASK["run"].replace("/records-bucket/", f"{self.bucket}/")
        given = {"SKYPILOT_TASK_ID": "sky-1", **TASK["envs"], **TASK["secrets"], **envs}
        environ = {name: str(value) for name, value in given.items()}
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.project,
            env=self.environ | environ,
            start_new_session=True,
        )

    def home_coming(self):
        """The record and the exit code that the bucket has."""
        archive = (self.bucket / "records-sky-1.tar.gz").read_bytes()
        with tarfile.open(fileobj=io.BytesIO(archive)) as records:
            record = "records/r1/record.json"
            there = record in records.getnames()
            content = records.extractfile(record).read().decode() if there else None
        return content, (self.bucket / "records-sky-1.exit-code").read_text()


@pytest.fixture
def rented(tmp_path):
    return Rented(tmp_path)


# measure.sh


@posix
def test_it_looks_measures_roofs_and_sweeps_with_the_words_it_was_given(rented):
    uri = {"MLFLOW_TRACKING_URI": "https://example.org"}
    assert rented.measure("classic", "--campaign", "two words", **uri) == 0
    assert asked(rented.facts) == [
        "doctor",
        "ceilings --backend cuda --if-missing",
        "sweep classic --campaign two words",
    ]


@posix
def test_without_a_server_nothing_is_tracked_and_roofs_that_fail_do_not_cost_the_sweep(rented):
    (rented.facts / "ceilings-code").write_text("1")
    assert rented.measure("classic") == 0
    assert asked(rented.facts)[1:] == [
        "ceilings --backend cuda --if-missing --no-track",
        "sweep --no-track classic",
    ]


@posix
@pytest.mark.parametrize(
    ("sweep_code", "sync_code", "code"), [(2, 0, 2), (130, 0, 130), (3, 0, 0), (3, 3, 3)]
)
def test_the_sweeps_exit_code_is_its_own_unless_a_sync_uploads_the_rest(
    rented, sweep_code, sync_code, code
):
    (rented.facts / "sweep-code").write_text(str(sweep_code))
    (rented.facts / "sync-code").write_text(str(sync_code))
    assert rented.measure("classic", MLFLOW_TRACKING_URI="https://example.org") == code
    assert ("sync" in asked(rented.facts)) == (sweep_code == 3)


# SkyPilot


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


# Ray's cluster


def test_workers_have_one_l4_each_and_no_machine_runs_unasked_or_outlives_a_day():
    types = dict(CLUSTER["available_node_types"])
    head = types.pop(CLUSTER["head_node_type"])
    assert not any(head["resources"].values())
    assert types
    for node in types.values():
        assert (node["min_workers"], node["max_workers"] >= 2) == (0, True)
        assert node["resources"] == {"CPU": 8, "GPU": 1, "benchmark": 1}
        assert node["node_config"]["machineType"].startswith("g2-standard-")  # Google's L4 family
    assert 0 < CLUSTER["idle_timeout_minutes"] <= 15
    for node in (head, *types.values()):
        scheduling = node["node_config"]["scheduling"]
        assert scheduling["maxRunDuration"]["seconds"] <= 24 * 60 * 60
        assert scheduling["instanceTerminationAction"] in ("STOP", "DELETE")
    for part in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert all(".venv/bin/ray " in command for command in CLUSTER[part])
    assert any("make setup" in command for command in CLUSTER["setup_commands"])
    assert CLUSTER["provider"]["project_id"] is None


@pytest.mark.skipif(os.name == "nt", reason="the cluster's machines run Linux")
def test_every_node_gets_the_commit_at_hand_and_later_a_newer_one(tmp_path):
    here, home = tmp_path / "here", tmp_path / "home"
    for folder in (here, home):
        folder.mkdir()
    [(there, bundle)] = CLUSTER["file_mounts"].items()
    [clone] = [command for command in CLUSTER["setup_commands"] if "git clone" in command]

    def arrive():
        """What the user types, then what Ray does on a node; the commit and what is there."""
        commit(here)
        (here / bundle).parent.mkdir(exist_ok=True)
        git("bundle", "create", "--quiet", bundle, "HEAD")
        shutil.copy(here / bundle, home / Path(there).name)
        environ = {**os.environ, "HOME": str(home)}
        subprocess.run(["bash", "-c", clone], env=environ, check=True)
        assert git("rev-parse", "HEAD") == git("rev-parse", "HEAD", at=home / "mlproject")
        return sorted(path.name for path in (home / "mlproject").glob("*.txt"))

    def git(*words, at=here):
        command = ["git", "-C", at, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    (here / "one.txt").touch()
    assert arrive() == ["one.txt"]
    (here / "two.txt").touch()
    assert arrive() == ["one.txt", "two.txt"]
