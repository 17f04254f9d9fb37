"""Profiles made by real workers: what each tool adds, and everything that can go wrong."""

import json
import os
import signal
import subprocess
import sys

import pytest
import samples
from scripted_perf import CORES, install
from stored_runs import filed
from worker_processes import small_run

from bench.errors import UserError
from bench.launcher import profile as launch
from bench.launcher.measurement import launch_measurement
from bench.launcher.profile import count_known_work, launch_profile, recover
from bench.profilers.base import TorchTool
from bench.records.folders import RecordFolder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("mlproject_command")]


@pytest.fixture
def perf(programs):
    install(programs)


def profiled(records, asked=None, **options):
    folder = RecordFolder.create(records)
    record = launch_profile(asked or small_run(), folder, **options)
    assert folder.read_record() == record
    assert not folder.in_use()
    return folder, record


@pytest.mark.long
def test_a_profile_explains_the_timed_run_of_the_same_work(tmp_path, perf, monkeypatch):
    asked = small_run("doubled_when_asked")
    timed = launch_measurement(asked, RecordFolder.create(tmp_path))
    other = RecordFolder.create(tmp_path)
    adam = small_run("doubled_when_asked", optimizer="adamw")
    other.close(timed.replaced(record_id=other.record_id, config=adam, config_id=adam.config_id))
    folder, record = profiled(tmp_path, small_run("doubled_when_asked", iters=7, warmup_iters=2))
    assert record.outcome == "ok"
    assert record.timed_record_id == timed.record_id
    assert record.work == timed.measurement.work
    assert record.work.counts
    labels = {op.label for op in record.ops.ops}
    assert {"convolution 3x3", "linear"} <= {label.partition(" stride")[0] for label in labels}
    assert record.cpu_counters.iterations == 7
    assert record.cpu_counters.ipc == 2.5
    names = {one.name for each in record.tool_telemetry.values() for one in each.series}
    assert "other_cpu_percent" in names
    assert record.tool_telemetry.keys() == {"torch", "perf"}
    assert "ncu was not tried" in record.missing["counters"]
    rows = (folder.path / "ops.csv").read_text().splitlines()
    assert len(rows) == len(record.ops.ops) + 1
    assert record.verdict.level != "invalid", record.verdict  # the machine may be busy
    # The step now does other work, and a tool that is not here does not keep the other from it.
    monkeypatch.setenv("CRASHING_MODELS_DOUBLED", "1")
    monkeypatch.setenv("PATH", "/nowhere")
    _, record = profiled(tmp_path, asked)
    assert record.outcome == "ok"
    assert record.timed_record_id == timed.record_id
    assert record.verdict.level == "invalid"
    assert any("relu" in finding.sentence for finding in record.verdict.findings)
    assert "install" in record.missing["cpu_counters"]


@pytest.mark.long
def test_of_several_devices_every_rank_is_profiled_and_rank_0_reports(tmp_path, perf):
    asked = small_run(devices=2)
    timed = launch_measurement(asked, RecordFolder.create(tmp_path))
    folder, record = profiled(tmp_path, asked)
    assert record.outcome == "ok", record.reason
    assert record.timed_record_id == timed.record_id
    assert record.verdict.level != "invalid", record.verdict  # the machine may be busy
    phases = {op.phase for op in record.ops.ops}
    assert phases == {"forward", "backward", "optimizer"}
    assert "c10d.allreduce_" in {op.op for op in record.ops.ops}
    assert (folder.path / "trace.json.gz").exists()
    assert record.missing["cpu_counters"] == "devices=2: perf counts one process; use devices=1"
    _, record = profiled(tmp_path, asked.model_copy(update={"arch": "ranked_models:raises"}))
    assert record.outcome == "crashed"
    assert record.reason.startswith("rank 1: ")
    assert "had enough" in record.reason


@pytest.mark.parametrize(
    ("changes", "is_twin"),
    [
        ({}, True),
        ({"iters": 9, "max_seconds": 77.0, "warmup_iters": 3}, True),
        ({"optimizer": "adamw"}, False),
        ({"batch_size": 8}, False),
        ({"arch": "resnet18"}, False),
    ],
)
def test_a_profile_finds_the_run_of_its_step(tmp_path, changes, is_twin):
    known = {"arch": "resnet50", "batch_size": 4}
    here = samples.environment()
    _, timed = filed(
        tmp_path,
        samples.run_record(
            small_run(**known),
            resolved=samples.resolved(batch_size=4, max_seconds=60.0),
            environment=here,
        ),
    )
    config = small_run(**known | changes)
    profile = samples.profile_record(
        config=config,
        resolved=samples.resolved(batch_size=config.batch_size),
        environment=here,
    )
    found = launch.find_timed(tmp_path, profile)
    assert (found == timed) == is_twin
    assert is_twin or "no measurement of this step" in found.reason


def test_a_tool_that_was_asked_for_and_is_not_here_is_unsupported(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    _, record = profiled(tmp_path, tools=["ncu"])
    assert record.outcome == "unsupported"
    assert record.reason == record.missing["counters"]
    assert record.ops is None
    assert record.missing["ops"] == "torch was not tried"


def test_a_step_that_fails_ends_the_profile_with_its_reason(tmp_path, perf):
    _, record = profiled(tmp_path, small_run("raises_later"))
    assert record.outcome == "crashed"
    assert "the model had enough" in record.reason
    assert record.missing["ops"] == record.missing["cpu_counters"] == record.reason


@pytest.mark.long
def test_a_tools_own_refusal_concerns_its_section_alone(tmp_path, monkeypatch):
    class Refused(TorchTool):
        def explain(self, console):
            return "perf says no: ask again"

    monkeypatch.setitem(launch.TOOLS, "torch", Refused)
    _, record = profiled(tmp_path)
    assert record.outcome == "ok"
    assert record.missing["ops"] == "perf says no: ask again"


@pytest.mark.long
def test_an_interrupt_keeps_what_was_found(tmp_path, perf):
    def interrupt_perf(event):
        if event.name == "window_started":
            raise KeyboardInterrupt

    _, record = profiled(tmp_path, small_run(iters=10**6), on_event=interrupt_perf)
    assert record.outcome == "interrupted"
    assert record.ops is not None
    assert record.cpu_counters is None


PROGRAM = """
import sys
from pathlib import Path
from worker_processes import small_run
from bench.records.folders import RecordFolder
from bench.launcher.profile import launch_profile
launch_profile(small_run(iters=10**6, max_seconds=2.0), RecordFolder.create(Path(sys.argv[1])))
"""


@pytest.mark.long
def test_a_killed_launcher_leaves_what_its_workers_found(tmp_path, perf):
    records = tmp_path / "records"
    launcher = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(records)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    while not list(records.glob("*/perf/journal.jsonl")):
        assert launcher.poll() is None
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    [path] = records.iterdir()
    folder = RecordFolder(path)
    while (record := recover(folder)) is None:
        assert folder.in_use()
    assert record.outcome == "interrupted"
    assert record.ops is not None
    assert "launching process ended" in record.missing["cpu_counters"]
    assert json.loads(folder.record.read_text())["kind"] == "profile"


def test_a_timed_run_is_named_by_its_record_or_its_folder(tmp_path, monkeypatch):
    folder, record = filed(tmp_path / "records")
    for records, name in (("records", record.record_id), ("elsewhere", str(folder.path))):
        assert launch.read_timed(tmp_path / records, name) == record
    monkeypatch.chdir(tmp_path)
    assert launch.read_timed(tmp_path, f"records/{record.record_id}") == record
    with pytest.raises(UserError, match="no measurement"):
        launch.read_timed(tmp_path / "records", "x" * 300)


@pytest.mark.long
def test_work_that_is_known_is_counted_under_a_tool(programs, tmp_path):
    install(programs, {**CORES, "fp_ret_sse_avx_ops.all": ("7000000", "")})
    copy, read, product = count_known_work("perf", "cpu")
    assert [one.work.split()[0] for one in (copy, read, product)] == ["copy", "read", "matmul"]
    assert copy.counted == read.counted == 20 * 64  # cache misses of a window, in bytes
    assert product.counted == 7_000_000
    launches = int(product.work.rpartition(" x ")[2])
    assert product.known == launches * 2 * 1024**3
    assert product.took_s >= 2.0
    assert not product.is_right
    install(programs, {})  # it knows no event at all
    with pytest.raises(UserError, match=r"event syntax error|no counts"):
        next(count_known_work("perf", "cpu"))
    with pytest.raises(UserError, match="NVIDIA"):
        next(count_known_work("ncu", "cpu"))
