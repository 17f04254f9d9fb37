"""The Ray cluster on Google Cloud, as it is written, and how a node gets its code."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from rented_machine import commit

FILE = Path(__file__).resolve().parent.parent.parent / "deploy" / "ray-gcp.yaml"


CLUSTER = yaml.safe_load(FILE.read_text("utf-8"))


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
