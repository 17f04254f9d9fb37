"""perf as a profile's tool: what it asks for, what the worker runs under, what it reads."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import samples
from scripted_perf import CORES
from test_perf_stat import step

from bench.errors import UserError
from bench.profilers.perf import (
    PerfTool,
    counting,
    make_gate,
    perf_stat,
    read_rows,
)
from bench.records import Account

PROJECT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs on Windows")

WORKER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from bench.profilers.perf import counting
with counting(json.loads(sys.argv[2])):
    sum(range(10**6))
"""
INTEL = {
    f"fp_arith_inst_retired.{width}_{element}": ("10", "")
    for width in ("scalar", "128b_packed", "256b_packed")
    for element in ("single", "double")
}


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")


def run(tool, folder):
    """Run the worker as the launcher does."""
    worker = tool.worker(folder)
    (folder / worker.name).mkdir()
    command = [sys.executable, "-c", WORKER, str(PROJECT), json.dumps(worker.task)]
    environment = {**os.environ, **worker.environment}
    return subprocess.run(
        [*worker.prefix, *command], capture_output=True, text=True, timeout=300, env=environment
    )


SLOW_CACHES = CORES | {"cache-misses": None, "branch-misses": ("0", "")}
ABSENT = {
    "cache_misses": "not supported",
    "branch_misses": "counted 0 while a step was trained: the machine does not count it",
    "flops": "fp_ret_sse_avx_ops.all: not supported",
}


@pytest.mark.parametrize(
    ("counts", "flops", "missing"),
    [
        ({**CORES, **INTEL}, 10 * (1 + 1 + 4 + 2 + 8 + 4), {}),
        # the machine's lack of an event that its perf knows is for perf to report
        (SLOW_CACHES | {"fp_ret_sse_avx_ops.all": None}, None, ABSENT),
    ],
)
@pytest.mark.slow
def test_the_whole_way(tmp_path, perf_here, counts, flops, missing):
    perf_here(counts=counts)
    tool = PerfTool()
    assert tool.obstacle("cpu") is None
    done = run(tool, tmp_path)
    assert done.returncode == 0, done.stderr
    counters = tool.read(tmp_path, step())
    assert (counters.source, counters.scope) == ("perf 6.1.192", "user and kernel")
    assert (counters.iterations, counters.window_s) == (20, 1.5)
    assert (counters.cycles, counters.instructions, counters.branches) == (1000, 2500, 400)
    assert (counters.flops, counters.missing) == (flops, missing)
    with pytest.raises(UserError, match="did not end"):
        tool.read(tmp_path, samples.facts(Account, outcome="ok"))


def test_what_perf_cannot_tell_is_an_error_and_its_fifos_end_with_the_tool(tmp_path, perf_here):
    perf_here()
    tool = PerfTool()
    worker = tool.worker(tmp_path)
    (tmp_path / worker.name).mkdir()
    subprocess.run([*worker.prefix, "true"], check=True, timeout=300)  # opens no window
    no_flops = "not counted; perf knows no floating-point events of this processor"
    with pytest.raises(UserError, match=rf"perf_stat\.csv: perf counted nothing.*{no_flops}"):
        tool.read(tmp_path, step())
    assert "the step runs on mps" in tool.obstacle("mps")
    with pytest.raises(UserError, match="runs on cuda; profile with backend=cpu"):
        tool.read(tmp_path, step(resolved=samples.resolved(backend="cuda")))
    words = "Traceback (most recent call last)\nError:\nNo permission to enable cycles:u event.\n"
    assert "the kernel forbids" in tool.explain(words)
    assert tool.explain("PermissionError: [Errno 13] Permission denied: 'x'\n") is None
    folder = Path(worker.task["control"]).parent
    assert len(list(folder.iterdir())) == 2
    del tool
    assert not folder.exists()


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf not installed")
def test_the_real_perf_counts_here_or_says_why_not(tmp_path):
    tool = PerfTool()
    obstacle = tool.obstacle("cpu")
    done = run(tool, tmp_path)
    if obstacle is None:
        assert done.returncode == 0, done.stderr
        assert tool.read(tmp_path, step()).instructions > 10**6
    else:
        assert len(obstacle) > 60
        with pytest.raises(UserError):
            tool.read(tmp_path, step())


# The worker's side of the FIFOs: against the real perf, a scripted one, a dead one and none


#: Threads that were started before the window work before it and in it; then there is more work.
THREADED = """
import json, sys, threading, time
sys.path.insert(0, sys.argv[1])
from bench.profilers.perf import counting

def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def thread():
    work(0.15)
    begin.wait()
    work(0.2)

begin = threading.Event()
threads = [threading.Thread(target=thread) for _ in range(2)]
for each in threads:
    each.start()
work(0.2)
while time.process_time() < 0.5:
    time.sleep(0.01)
with counting(json.loads(sys.argv[2])):
    before = time.process_time()
    begin.set()
    work(0.1)
    for each in threads:
        each.join()
    inside = time.process_time() - before
work(0.4)
print(json.dumps({"inside": inside, "whole": time.process_time()}))
"""


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf not installed")
@pytest.mark.slow
def test_the_real_perf_counts_all_threads_in_the_window_and_nothing_else(tmp_path):
    gate, output = make_gate(tmp_path), tmp_path / "counts.csv"
    worker = [sys.executable, "-c", THREADED, str(PROJECT), json.dumps(gate)]
    command = [*perf_stat(output, ("task-clock",), gate), *worker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    cpu_s = json.loads(done.stdout)
    # The window's 0.5 s, of which 0.4 s are the threads'; the rest of the process is 0.9 s.
    assert cpu_s["inside"] >= 0.5
    assert cpu_s["whole"] >= cpu_s["inside"] + 0.9
    (counted_s,) = [row.count / 1e3 for row in read_rows(output)]
    assert cpu_s["inside"] * 0.98 <= counted_s <= cpu_s["inside"] + 0.2


class Listener:
    """perf's side: both FIFOs open for reading and writing; gives `answers`."""

    def __init__(self, folder, answers):
        self.gate = make_gate(folder)
        self._ends = [os.open(path, os.O_RDWR) for path in self.gate.values()]
        self.heard = []
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers):
        for pieces in answers:
            self.heard.append(os.read(self._ends[0], 100))
            for piece in pieces:
                os.write(self._ends[1], piece)


WHOLE, IN_PIECES = ((b"ack\n\0",), (b"ack\n\0",)), ((b"a", b"ck\n"), (b"\0", b"ack\n\0"))


@pytest.mark.parametrize("answers", [WHOLE, IN_PIECES])
def test_commands_are_sent_around_the_body(tmp_path, answers):
    listener = Listener(tmp_path, answers)
    descriptors = len([*Path("/dev/fd").iterdir()])
    with counting(listener.gate):
        assert listener.heard == [b"enable\n"]
    assert listener.heard == [b"enable\n", b"disable\n"]
    assert len([*Path("/dev/fd").iterdir()]) == descriptors


@pytest.mark.parametrize("answers", [(), ((b"ack",),), ((b"\0",),), ((b"nack",),)])
def test_without_an_answer_the_body_does_not_run(tmp_path, answers):
    gate = Listener(tmp_path, answers).gate
    words = r"did not answer 'enable' in 0\.05 s; console\.log"
    with pytest.raises(UserError, match=words), counting(gate, answer_s=0.05):
        pytest.fail("there was no answer")


def test_a_perf_that_ends_in_the_window_is_an_error_and_the_bodys_error_comes_out(tmp_path):
    listener = Listener(tmp_path, WHOLE[:1])
    with pytest.raises(UserError, match="'disable'"), counting(listener.gate, answer_s=0.05):
        pass
    (tmp_path / "another").mkdir()
    listener = Listener(tmp_path / "another", WHOLE)
    with pytest.raises(ValueError, match="of the step"), counting(listener.gate):
        raise ValueError("of the step")
    assert listener.heard == [b"enable\n"]
