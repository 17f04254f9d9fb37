"""The Ray cluster on Google Cloud, read by Ray's own cluster launcher; no cloud is asked."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from rented_machine import commit

FILE = Path(__file__).resolve().parent.parent.parent / "deploy" / "ray-gcp.yaml"


@pytest.fixture(scope="module")
def cluster():
    """The file as `ray up` completes it."""
    from ray.autoscaler._private import util  # takes seconds

    cluster = util.prepare_config(yaml.safe_load(FILE.read_text("utf-8")))
    util.validate_config(cluster)
    return cluster


def test_workers_have_one_l4_each_none_runs_unasked_and_nothing_is_measured_on_the_head(cluster):
    types = dict(cluster["available_node_types"])
    head = types.pop(cluster["head_node_type"])
    assert not any(head["resources"].values())
    assert types
    for node in types.values():
        assert node["min_workers"] == 0
        assert node["max_workers"] >= 2
        assert node["resources"] == {"CPU": 8, "GPU": 1, "benchmark": 1}
        assert node["node_config"]["machineType"].startswith("g2-standard-")  # Google's L4 family


def test_idle_workers_are_shut_down_and_no_machine_outlives_a_day_even_if_the_head_dies(cluster):
    assert 0 < cluster["idle_timeout_minutes"] <= 15
    for node in cluster["available_node_types"].values():
        scheduling = node["node_config"]["scheduling"]
        assert scheduling["maxRunDuration"]["seconds"] <= 24 * 60 * 60
        assert scheduling["instanceTerminationAction"] in ("STOP", "DELETE")


def test_every_node_runs_rays_commands_from_the_projects_environment(cluster):
    for part in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert all(".venv/bin/ray " in command for command in cluster[part])
    # not what Ray would add: another environment, and an old client for Google's interfaces
    everything = " ".join([*cluster["head_setup_commands"], *cluster["worker_setup_commands"]])
    assert "make setup" in everything
    assert "pip install google-api-python-client==" not in everything


def test_no_project_and_no_credential_is_in_it(cluster):
    assert cluster["provider"]["project_id"] is None
    assert "gcp_credentials" not in cluster["provider"]


@pytest.mark.skipif(os.name == "nt", reason="the cluster's machines run Linux")
def test_every_node_gets_the_commit_at_hand_and_later_a_newer_one(cluster, tmp_path):
    here, home = tmp_path / "here", tmp_path / "home"
    for folder in (here, home):
        folder.mkdir()
    [(there, bundle)] = cluster["file_mounts"].items()
    [clone] = [command for command in cluster["setup_commands"] if "git clone" in command]

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
