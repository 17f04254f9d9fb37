"""A real profile under a perf: launcher, perf, worker, window, record."""

import shutil
import sys
from pathlib import Path

import pytest

from bench.config import RunConfig
from bench.launcher.profile import launch_profile
from bench.profilers import perf
from bench.profilers.perf import perf_program
from bench.records.folders import RecordFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs on Windows"),
]
TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_models(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr("platform.system", lambda: "Linux")


def profiled(tmp_path, **changes):
    known = {"arch": "crashing_models:small", "backend": "cpu", "batch_size": 4, "image_size": 32}
    config = RunConfig(**{**known, "warmup_iters": 2, "iters": 6, **changes})
    return launch_profile(config, RecordFolder.create(tmp_path), tools=("perf",))


@pytest.mark.long
def test_a_perf_that_ends_before_the_worker_is_the_reason(tmp_path, perf_here):
    script = perf_here()
    text = script.read_text()
    script.write_text(text.replace("child = subprocess.Popen(command)", ABSENT))
    record = profiled(tmp_path)
    assert record.cpu_counters is None
    assert "perf does not listen" in record.missing["cpu_counters"]


#: Neither listens nor holds the FIFOs open while the worker runs.
ABSENT = """[os.close(end) for end in gate or ()]
gate = None
child = subprocess.Popen(command)"""


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf not installed")
def test_the_real_perf_around_a_real_worker(tmp_path, monkeypatch):
    """Software events stand in for the hardware's, so that every machine counts something."""
    monkeypatch.setattr(perf.perf_tool, "find_obstacle", lambda: None)
    stat = perf_program.perf_stat
    events = ("task-clock", "page-faults")
    monkeypatch.setattr(
        perf.perf_tool, "perf_stat", lambda output, asked, gate: stat(output, events, gate)
    )
    record = profiled(tmp_path, iters=40, image_size=64)
    folder = tmp_path / record.record_id / "perf"
    (clock,) = [
        row for row in perf_program.read_rows(folder / "perf_stat.csv") if row.unit == "msec"
    ]
    step = RecordFolder(folder).read_worker()
    assert step.outcome == "ok"
    assert step.iterations == 40
    # The worker's start and warm-up take seconds of processor time, the window far less.
    assert 0 < clock.count / 1e3 <= 1.1 * step.window_s * step.environment.cpu_cores_usable
