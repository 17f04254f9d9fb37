"""`mlproject sweep --executor ray` on a real Ray cluster of several nodes in one machine."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from servers import free_port
from worker_processes import until

from bench.config import RunConfig
from bench.records import Job
from bench.records.folders import RecordFolder, read_records, record_folders
from contrib import ray as cluster
from tracking import schema
from tracking.tracked_runs import search_runs

MODELS = Path(__file__).resolve().parents[1] / "bench"
pytestmark = [pytest.mark.slow, pytest.mark.cluster]

MATRIX = """
name: tiny
repeats: 2
defaults: {backend: cpu, image_size: 32, warmup_iters: 1, iters: 1000000, max_seconds: 3.0}
blocks:
  - arch: crashing_models:small
    batch_size: [2, 4]
"""
ALL = {(batch, repeat): 1 for batch in (2, 4) for repeat in (1, 2)}
MEMORY = 80 * 2**20  # the least that Ray takes for its object store
#: A dead node is known to be dead after three seconds instead of fifteen.
SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """A head on which nothing is measured, and nodes, each with a cache of its own."""

    def __init__(self, folder):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
        self._folder = folder
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**head, "_system_config": SOON}
        )
        self._alive = {}
        self.address = self._cluster.address

    def alive(self, *names):
        """Have these nodes and no others."""
        for name in self._alive.keys() - set(names):
            self.kill(name)
        for name in set(names) - self._alive.keys():
            self._alive[name] = self._cluster.add_node(
                num_cpus=1,
                object_store_memory=MEMORY,
                resources={"benchmark": 1},
                env_vars={
                    "XDG_CACHE_HOME": str(self._folder / name),
                    "PYTHONPATH": str(MODELS),
                },
            )

    def kill(self, name):
        """SIGKILL, as a machine that vanishes."""
        self._cluster.remove_node(self._alive.pop(name), allow_graceful=False)

    def folders(self, name):
        """What a node keeps of its own measurements."""
        hosts = self._folder.joinpath(name, "mlproject", "ray").glob("*")
        return [folder for host in hosts for folder in record_folders(host)]

    def measuring(self, name):
        """Whether the node is inside a measured window."""
        return any(
            "window_started" in folder.journal.read_text() and not folder.worker.is_file()
            for folder in self.folders(name)
            if folder.journal.is_file() and not folder.record.is_file()
        )

    def close(self):
        self.alive()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    yield nodes
    nodes.close()


@pytest.fixture
def place(mlproject_command):
    (mlproject_command.folder / "tiny.yaml").write_text(MATRIX)
    return mlproject_command.folder


@pytest.fixture
def sweep(nodes, place, mlproject_command):
    started = []

    def start(*arguments, **environment):
        where = ("--executor", "ray", "--address", nodes.address, "--campaign", place.name)
        words = ("sweep", place / "tiny.yaml", *where, *arguments)
        started.append(mlproject_command.start(*words, **environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process):
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def measured_well(records):
    found = [record for record in read_records(records) if record.outcome == "ok"]
    return Counter((record.config.batch_size, record.config.repeat) for record in found)


def test_a_node_and_the_server_die_and_nothing_is_lost_or_measured_twice(nodes, place, sweep):
    nodes.alive("a", "b")
    nowhere = f"http://127.0.0.1:{free_port()}"
    process = sweep(MLFLOW_TRACKING_URI=nowhere)
    until(lambda: nodes.measuring("a"), process)
    second = sweep("--no-track")
    nodes.kill("a")
    code, out, err = ended(second)
    assert code == 2
    assert "another sweep of it is under way" in err

    code, out, err = ended(process)
    assert code == 3, err
    assert "is gone; what it was measuring starts again elsewhere" in err
    assert "raylet" not in out + err
    assert out.count(" ok ") == 4
    assert measured_well(place / "records") == ALL
    # The dead node's worker was ended with it, and what it had is still there.
    [half] = [each for each in nodes.folders("a") if each.read_record().outcome != "ok"]
    assert half.read_record().outcome == "interrupted"
    assert not half.in_use()

    nodes.alive("a")
    code, out, err = ended(sweep())
    assert code == 0, err
    assert out.count("measured before") == 4
    assert (place / "records" / half.record_id / "record.json").is_file()
    on_server = Counter(
        (int(run.params["batch_size"]), int(run.params["repeat"]))
        for run in search_runs()
        if run.tags[schema.OUTCOME] == "ok"
    )
    assert on_server == ALL
    assert len(search_runs()) == 5


def test_ctrl_c_ends_what_runs_on_a_node_that_joined_late_and_brings_it_home(nodes, place, sweep):
    nodes.alive()
    process = sweep("--no-track", "--set", "max_seconds=600")
    waiting = "no node has cpu and the resource benchmark: waiting"
    assert any(waiting in line for line in process.stderr)  # Ray may still know an earlier node
    nodes.alive("b")
    until(lambda: nodes.measuring("b"), process)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert "4 of 4 runs left: the same command takes them up" in err
    [record] = read_records(place / "records")
    assert record.outcome == "interrupted"
    assert record.process is not None
    assert not any(folder.in_use() for folder in nodes.folders("b"))


def test_what_is_left_on_a_node_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "node_records", lambda: tmp_path)
    monkeypatch.setattr(cluster, "_LAST_RECORDS_S", 0.0)
    folder = RecordFolder.create(tmp_path)
    folder.write(folder.config, Job(config=RunConfig()))
    folder.claim(os.getpid())
    assert cluster.unsent("tiny", []) == []
    assert folder.in_use()


def test_a_killed_driver_leaves_no_worker_and_what_it_had_is_found(nodes, place, sweep):
    nodes.alive("b")
    (place / "tiny.yaml").write_text(MATRIX.replace("repeats: 2", "repeats: 1"))
    process = sweep("--no-track", "--limit", "1")
    until(lambda: nodes.measuring("b"), process)
    process.kill()
    process.communicate()
    assert not (place / "records").exists()
    assert ended(sweep("--no-track", "--limit", "1"))[0] == 0
    assert measured_well(place / "records") == {(2, 1): 1}
    outcomes = Counter(record.outcome for record in read_records(place / "records"))
    assert outcomes == {"ok": 1, "interrupted": 1}


def test_runs_without_a_node_are_left_over(nodes, place, sweep):
    nodes.alive("b")
    process = sweep("--no-track", "--node-wait", "1", "--set", "max_seconds=600")
    until(lambda: nodes.measuring("b"), process)
    nodes.kill("b")
    code, out, err = ended(process)
    assert code == 1
    assert out.count("left over") == 4
    assert "4 of 4 runs left: the same command takes them up" in err
