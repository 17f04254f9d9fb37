"""What a cluster's driver and its nodes do without a cluster: records, demands and refusals."""

import sys

import pytest
import samples
from servers import free_port
from stored_runs import filed
from worker_processes import output_of

import mlproject
from bench.config import RunConfig
from bench.errors import UserError
from bench.launcher.processes import ENDS_WITH_STARTER
from bench.records.folders import read_records
from contrib.ray import RayExecutor, node_records, pack, unpack, unsent

MINE = RunConfig(campaign="c", backend="cpu")


@pytest.fixture
def parcel(tmp_path):
    folder, _ = filed(tmp_path / "node", samples.run_record(MINE))
    folder.journal.write_text("{}\n")
    for name in ("mlflow_run", "owners.json", ".reserve"):
        (folder.path / name).write_text("{}")
    return pack(folder)


def test_a_record_arrives_whole_once_and_without_what_concerns_one_machine(parcel, tmp_path):
    home = tmp_path / "home"
    (home / ".arriving" / parcel[0]).mkdir(parents=True)  # of a driver that was killed
    (home / ".arriving" / parcel[0] / "config.json").write_text("{")
    assert read_records(home) == []
    folder, record = unpack(parcel, home)
    assert record == read_records(tmp_path / "node")[0]
    files = {path.name for path in folder.path.iterdir()}
    there = {path.name for path in (tmp_path / "node" / parcel[0]).iterdir()}
    assert there - files == {"mlflow_run", "owners.json", ".reserve"}
    folder.project_run.write_text("{}")
    unpack(parcel, home)
    assert folder.project_run.is_file()
    assert [path.name for path in home.iterdir()] == [parcel[0]]


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(parcel, tmp_path):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(UserError, match="the node keeps what it measured"):
        unpack(parcel, tmp_path / "home")


def test_a_node_sends_what_the_driver_does_not_know_of_its_campaign(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, first = filed(node_records(), samples.run_record(MINE))
    _, second = filed(node_records(), samples.run_record(MINE))
    filed(node_records(), samples.run_record(MINE.model_copy(update={"campaign": "d"})))
    sent = [unpack(parcel, tmp_path / "home")[1] for parcel in unsent("c", [first.record_id])]
    assert sent == [second]


@pytest.mark.parametrize(
    ("asked", "card", "demand"),
    [
        ({"backend": "cpu"}, True, {"benchmark": 1}),
        ({"backend": "cpu", "devices": 2}, False, {"benchmark": 1}),
        ({"backend": "mps"}, False, {"benchmark": 1, "mps": 1}),
        ({"backend": "cuda", "devices": 2}, False, {"GPU": 2, "benchmark": 0.01}),
        ({"backend": "auto"}, True, {"GPU": 1, "benchmark": 0.01}),
        ({"backend": "auto"}, False, {"benchmark": 1}),
    ],
)
def test_a_run_asks_ray_for_what_keeps_others_away(asked, card, demand):
    cluster = RayExecutor("auto", node_wait_s=0, note=print)
    cluster._nodes["a"] = {"Resources": {"benchmark": 1, **({"GPU": 2} if card else {})}}
    assert cluster._demand(RunConfig(batch_size=2, **asked)) == demand


PROGRAM = """
import os
before = os.environ.get("OMP_NUM_THREADS")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Ray does
from contrib.ray import _environment
assert _environment().get("OMP_NUM_THREADS") == before
"""


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "3"}])
@pytest.mark.slow
def test_rays_thread_count_is_not_the_workers(given, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    output_of(PROGRAM, **given)


STARTED = """
import os
from bench.launcher.processes import starters
found = [starter.pid for starter in starters()]
assert (os.getppid() in found) == ("MLPROJECT_ENDS_WITH_STARTER" in os.environ), found
"""


@pytest.mark.parametrize("given", [{}, {ENDS_WITH_STARTER: "1"}])
def test_a_launcher_on_a_node_watches_what_started_it(given, monkeypatch):
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    output_of(STARTED, **given)


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The line that refuses a sweep on a cluster."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text("blocks:\n  - batch_size: 2\n")

    def line(*arguments):
        assert mlproject.main(["sweep", "tiny.yaml", "--executor", "ray", *arguments]) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        return line

    return line


def test_ray_that_is_not_installed_is_asked_for(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "contrib.ray", None)
    assert "pip install 'mlproject[ray]'" in refused()


def test_an_address_where_no_cluster_answers_is_named(refused):
    line = refused("--address", address := f"127.0.0.1:{free_port()}")
    assert address in line
    assert "ray start --head" in line


@pytest.mark.cluster  # another's cluster on this machine would answer
def test_a_machine_without_a_cluster_is_told_so(refused, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "address='auto'" in refused()
