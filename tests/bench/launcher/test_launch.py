"""Real worker processes, and everything that can end one: there is always a record."""

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from worker_processes import in_window, small_run, worker_of

from bench.launcher.measurement import launch_measurement
from bench.launcher.profile import recover
from bench.launcher.watch import _last_words
from bench.records.folders import RecordFolder, read_records
from bench.records.metrics import summary

PROJECT = Path(__file__).resolve().parents[3]
LONG = pytest.mark.long
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("mlproject_command")]


def launched(tmp_path, on_event=lambda event: None, **changes):
    folder = RecordFolder.create(tmp_path)
    record = launch_measurement(small_run(**changes), folder, on_event)
    assert folder.read_record() == record
    assert read_records(tmp_path) == [record]
    return folder, record


def test_a_measurement_leaves_a_whole_record_and_its_exports(tmp_path):
    names = []
    relies = {"arch": "crashing_models:leaves_cycles"}  # on Python's collector
    how = {**relies, "phases": True, "explain": True}
    folder, record = launched(tmp_path, lambda event: names.append(event.name), **how)
    assert record.outcome == "ok", record.reason
    measurement = record.measurement
    assert len(measurement.iteration_times_s) == 6
    assert measurement.samples == 24
    assert set(measurement.phase_times_s) == {"data", "forward", "backward", "optimizer"}
    assert sum(map(sum, measurement.phase_times_s.values())) <= measurement.window_s
    assert record.resolved.batch_size == 4
    assert record.complexity.step_flops > 0
    assert record.ops.iterations >= 1
    assert {op.phase for op in record.ops.ops if op.flops} >= {"forward", "backward"}
    assert record.process.user_s > 0
    assert record.process.max_rss_bytes > 100e6
    assert record.environment.torch
    assert record.verdict is not None
    order = [name for name in names if name not in ("tick", "probe", "notice")]
    assert order == [
        *("started", "imported", "device", "warmup_started", "warmup", "warmup"),
        *("window_started", "window_ended", "ended", "memory"),
    ]
    rows = (folder.path / "iterations.csv").read_text().splitlines()
    assert len(rows) == 7
    assert json.loads((folder.path / "environment.json").read_text())["torch"]
    assert not folder.in_use()


def test_what_is_taken_out_of_further_steps_is_in_the_record(tmp_path):
    folder, asked = RecordFolder.create(tmp_path), small_run(data="fakedata")
    record = launch_measurement(asked, folder, lambda event: None, without="input,sync,host")
    assert (record.outcome, len(record.measurement.iteration_times_s)) == ("ok", 6)
    found = {removal.what: removal for removal in record.removals}
    assert len(found["input"].with_s) == len(found["input"].without_s) >= 3
    assert len(found["host"].with_s) >= 3
    assert "no DistributedDataParallel" in found["sync"].missing["with_s"]
    assert record.config_id == asked.config_id


def test_the_warm_up_waits_for_what_the_launcher_does_while_it_prepares(tmp_path):
    opened, warming = threading.Event(), threading.Event()
    early = []

    def on_event(event):
        seen = {"device": opened, "warmup_started": warming}.get(event.name)
        if seen is not None:
            seen.set()

    def while_preparing():
        opened.wait(300)
        early.append(warming.wait(3))

    folder = RecordFolder.create(tmp_path)
    record = launch_measurement(small_run(), folder, on_event, while_preparing=while_preparing)
    assert record.outcome == "ok", record.reason
    assert record.missing["ops"] == "explain=false"
    assert record.config_id == small_run(explain=True).config_id
    assert early == [False]


def test_a_worker_that_waits_for_its_launcher_can_be_interrupted(tmp_path):
    opened, never = threading.Event(), threading.Event()

    def on_event(event):
        if event.name == "device":
            opened.set()
        if event.name == "tick" and opened.is_set():
            raise KeyboardInterrupt

    folder = RecordFolder.create(tmp_path)
    record = launch_measurement(small_run(), folder, on_event, while_preparing=never.wait)
    never.set()
    assert (record.outcome, record.measurement) == ("interrupted", None)
    assert folder.is_interrupted


@pytest.mark.parametrize(
    ("precision", "mode", "native", "words"),
    [
        ("amp", "fp32", True, ["no bf16 or fp16 arithmetic; measured in fp32"]),
        ("amp-bf16", "bf16", False, ["computes bf16 by emulation"]),
        pytest.param("amp-fp16", "fp16", False, ["computes fp16 by emulation"], marks=LONG),
    ],
)
def test_without_16_bit_instructions_amp_is_fp32_and_emulation_is_said_before_it_starts(
    tmp_path, monkeypatch, precision, mode, native, words
):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    said = []

    def listen(event):
        if event.name in ("notice", "warmup_started"):
            said.append(event.facts.get("text"))

    _, record = launched(tmp_path, listen, precision=precision)
    assert record.outcome == "ok", record.reason
    assert record.config.precision == precision
    assert (record.resolved.math_mode, record.resolved.native_math) == (mode, native)
    assert (record.complexity.precision, record.complexity.math_mode) == (precision, mode)
    note, limits, started = said
    assert all(part in note for part in words)
    assert limits.startswith(
        "2 + 6 iterations; warm-up ends at the latest 10 s after its first one, the window"
    )
    assert started is None
    departure = record.resolved.departure(precision)
    assert departure in ("amp-in-fp32", "emulated")
    assert note in [finding.sentence for finding in record.verdict.findings]
    limited = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert limited.items() <= record.environment.variables.items()


def test_a_crash_keeps_its_iterations_and_its_traceback(tmp_path):
    # Two of warm-up, then the fifth call raises: two measured.
    folder, record = launched(tmp_path, arch="crashing_models:raises_later")
    assert (record.outcome, record.verdict.level) == ("crashed", "invalid")
    assert record.reason == "RuntimeError: the model had enough"
    assert len(record.measurement.iteration_times_s) == 2
    assert "Traceback" in folder.console.read_text()


def test_a_worker_that_dies_after_its_window_leaves_a_reason_and_a_whole_record(tmp_path):
    _, record = launched(tmp_path, arch="crashing_models:dies_when_explained", explain=True)
    assert (record.outcome, record.reason) == ("ok", None)
    assert len(record.measurement.iteration_times_s) == 6
    assert record.complexity is not None
    assert record.missing["ops"] == "the worker ended while it profiled a step"


@pytest.mark.long
def test_a_worker_killed_in_its_window_is_a_record_and_leaves_no_process(tmp_path):
    workers = []

    def kill(event):
        if event.name == "window_started":
            workers.append(worker_of(tmp_path))
            workers[0].kill()

    _, record = launched(tmp_path, kill, iters=10**6)
    assert record.outcome == "crashed"
    assert "SIGKILL" in record.reason
    assert "window_started" in record.reason
    assert record.process.missing == {"max_rss_bytes": "the worker ended before it could say"}
    assert not any(worker.is_running() for worker in workers)


def start(command, **changes):
    options = []
    for name, value in small_run(**changes).model_dump().items():
        options += [f"--{name.replace('_', '-')}", str(value).lower()]
    return command.start("run", *options, "--records", command.folder, "--no-track")


def test_records_that_go_away_in_the_window_cost_the_record_and_not_the_figures(
    tmp_path, mlproject_command
):
    command = start(mlproject_command, iters=100, max_seconds="none")
    folder = in_window(command, tmp_path)
    shutil.rmtree(folder.path)
    out, err = command.communicate()
    assert command.returncode == 1
    assert re.search(r"iteration_time_ms_p50 +\d", out)
    assert [line for line in err.splitlines() if folder.record_id in line][1:] == []
    assert "Traceback" not in err
    assert not folder.path.exists()


def test_a_killed_launcher_loses_nothing_that_its_worker_measures(tmp_path, mlproject_command):
    command = start(mlproject_command, iters=100, max_seconds="none")
    folder = in_window(command, tmp_path)
    command.kill()
    command.wait()
    owners = json.loads((folder.path / "owners.json").read_text())["processes"]
    worker = next(int(pid) for pid in owners if int(pid) != command.pid)
    psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [], timeout=120)
    assert folder.read_record() is None
    record = recover(folder)
    assert record.outcome == "ok"
    assert len(record.measurement.iteration_times_s) == 100
    assert "launching process" in record.missing["telemetry"]
    assert "unwatched" in [finding.code for finding in record.verdict.findings]
    assert record.measurement.other_cpu_cores is not None  # the worker itself has looked
    assert recover(folder) == record


@LONG
def test_a_launcher_and_worker_killed_together_leave_an_interrupted_record(
    tmp_path, mlproject_command
):
    command = start(mlproject_command, iters=10**7, max_seconds="none")
    folder = in_window(command, tmp_path)
    assert recover(folder) is None  # still at work
    family = [*psutil.Process(command.pid).children(recursive=True), psutil.Process(command.pid)]
    for process in family:
        process.kill()
    command.wait()
    psutil.wait_procs(family, timeout=120)
    record = recover(folder)
    assert record.outcome == "interrupted"
    assert record.measurement is None


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=LONG)])
def test_the_command_that_is_interrupted_keeps_what_was_measured(
    tmp_path, mlproject_command, signum
):
    command = start(mlproject_command, iters=10**7, max_seconds="none")
    folder = in_window(command, tmp_path)
    # A worker says nothing from inside its window: the time it has used is its only clock.
    [worker] = psutil.Process(command.pid).children()
    used_s = worker.cpu_times().user
    while worker.cpu_times().user < used_s + 1.5:  # of telemetry, three samples
        time.sleep(0.01)
    command.send_signal(signum)
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 130
    assert "Traceback" not in errors
    record = folder.read_record()
    assert record.outcome == "interrupted"
    assert record.measurement.iteration_times_s
    assert "worker_cpu_percent" in {series.name for series in record.telemetry.series}
    assert (folder.path / "telemetry.csv").exists()
    assert record.verdict.level == "invalid"


def test_the_users_own_step_of_the_documentation_is_measured(tmp_path, monkeypatch):
    text = (PROJECT / "docs/models-and-data.md").read_text("utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) <= 20
    (tmp_path / "mysteps.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    own = {"arch": "mysteps:Echo", "image_size": "auto", "batch_size": 2, "iters": 4}
    _, record = launched(tmp_path / "records", **own)
    assert record.outcome == "ok", record.reason
    assert summary(record)["throughput_tokens_per_s"] > 0
    assert record.complexity.forward_macs == 2 * 32 * 64 * 1000
    assert record.environment.model_code.modules == ("mysteps",)
    assert record.environment.model_code.git_commit is None


FOREIGN = ("bench/__init__.py", "commands/__init__.py", "torch/__init__.py", "profile.py",
           "queue.py", "random.py", "statistics.py", "pickle.py", "socket.py")  # fmt: skip


@pytest.fixture
def crowded(mlproject_command, monkeypatch):
    """The working folder, with modules that fail, and the user's model beside them."""
    monkeypatch.setattr(sys, "path", sys.path.copy())  # a model counted here adds the folder
    folder = mlproject_command.folder
    for name in FOREIGN:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"raise RuntimeError('foreign {name}')")
    (folder / "mynets.py").write_text("from crashing_models import small\n")
    return folder


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        # an empty entry of PYTHONPATH is the working folder
        ({"data": "fakedata", "workers": 1}, os.pathsep),
        pytest.param({}, "", marks=LONG),
        pytest.param({"devices": 2}, os.pathsep, marks=LONG),
        pytest.param({"compile": "default"}, "", marks=LONG),
    ],
)
def test_no_file_of_the_working_folder_is_executed_by_accident(crowded, monkeypatch, changes, path):
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"] + path)
    _, record = launched(crowded / "records", arch="mynets:small", **changes)
    assert record.outcome == "ok", record.reason


@pytest.mark.parametrize("name", ["bench.nets", "commands.nets", "random"])
def test_a_model_that_another_module_hides_says_so(crowded, mlproject_command, name):
    (crowded / f"{name.replace('.', '/')}.py").write_text("from crashing_models import small\n")
    code, _, err = mlproject_command("complexity", "--arch", f"{name}:small")
    assert code == 2
    assert "rename" in err


ABORT = "  what():  Unrecognized key\nException raised from consumeToken\nframe #0: c10::Error"


@pytest.mark.parametrize(
    ("console", "words"),
    [("", ""), ("one\ntwo\n\n", "two"), ("failed\nframe #0: main\n", "failed"),
     (ABORT, "what():  Unrecognized key")],
)  # fmt: skip
def test_the_last_words_of_a_worker_are_not_the_frames_of_a_stack(console, words):
    assert _last_words(console) == words
