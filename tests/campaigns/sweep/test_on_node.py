"""What runs on a node, without a cluster: the launcher, its pipe, and what it inherits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import samples
from refusals import refusal
from worker_processes import output_of, small_run

from bench.launcher.processes import terminate_tree
from bench.machine.repository import code_id
from bench.records.folders import RecordFolder, new_record_id
from campaigns.sweep.ray import on_node as node
from campaigns.sweep.ray.record_transfer import unpack

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def order(mlproject_command):
    return {
        "record_id": new_record_id(),
        "config": small_run(campaign="c").model_dump(mode="json"),
        "device": samples.device_info().model_dump(mode="json"),
        "settle_s": 0.0,
        "at_rest_c": {},
    }


@pytest.mark.slow
def test_a_measurement_comes_back_whole_now_or_when_the_node_is_asked_again(order, tmp_path):
    _, record = unpack(node.measure(order), tmp_path / "home")
    assert record.outcome == "ok"
    assert record.record_id == order["record_id"]
    assert record.model_dump(mode="json")["config"] == order["config"]
    facts, [parcel] = node.identify("auto", "c", [])
    assert facts["environments"][-1]["device"]["backend"] == "cpu"
    assert len(facts["at_rest_c"]) == len(facts["environments"])
    assert facts["code"] == code_id()
    assert unpack(parcel, tmp_path / "second")[1] == record
    assert node.unsent_records("c", [order["record_id"]]) == []
    assert node.unsent_records("another", []) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_closed_pipe_ends_the_worker_and_keeps_what_it_measured(order, tmp_path):
    order["config"] |= {"iters": 10**6, "max_seconds": "none"}
    answer = tmp_path / "answer.json"
    launcher = subprocess.Popen(
        [sys.executable, "-m", "campaigns.sweep.ray.on_node", str(answer)],
        stdin=subprocess.PIPE,
        cwd=PROJECT,
    )
    folder = RecordFolder(tmp_path / "records" / order["record_id"])
    task = order | {"do": "measure", "records": str(folder.path.parent)}
    launcher.stdin.write(json.dumps(task).encode() + b"\n")
    launcher.stdin.flush()
    try:
        while not (folder.journal.is_file() and "window_started" in folder.journal.read_text()):
            assert launcher.poll() is None
        launcher.stdin.close()  # as it is when its parent dies
        assert launcher.wait(300) == 0
    finally:
        terminate_tree(launcher, grace_s=0.0)
    record = folder.read_record()
    assert record.outcome == "interrupted"
    assert record.process is not None  # by the launcher, not by recovery
    assert not folder.in_use()


def test_what_keeps_a_node_from_measuring_is_said_in_one_line(order, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert refusal(node.measure, order, error=node.NodeError)


PROGRAM = """
import os, sys
before = os.environ.get("OMP_NUM_THREADS")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Ray does
from campaigns.sweep.ray.on_node import _environment
assert _environment().get("OMP_NUM_THREADS") == before
"""


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "3"}])
def test_rays_thread_count_is_not_the_workers(given, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    output_of(PROGRAM, **given)
