"""The worker's side of the FIFOs: against the real perf, a scripted one, a dead one and none."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.errors import UserError
from bench.profilers.files.perf_rows import read_rows
from bench.profilers.perf.perf_control import counting
from bench.profilers.perf.perf_program import Gate, perf_stat

PROJECT = Path(__file__).resolve().parents[4]
real_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="perf not installed")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs on Windows")

#: Threads that were started before the window work before it and in it; then there is more work.
WORKER = """
import json, sys, threading, time
sys.path.insert(0, sys.argv[1])
from bench.profilers.perf.perf_control import counting

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


def task_of(*gates):
    names = ("", "memory_")
    return {
        f"{prefix}{end}": str(getattr(gate, end))
        for prefix, gate in zip(names, gates, strict=False)
        for end in ("control", "acknowledge")
    }


@real_perf
def test_the_real_perf_counts_all_threads_in_the_window_and_nothing_else(tmp_path):
    gate = Gate.make(tmp_path, "perf")
    output = tmp_path / "stat.csv"
    command = perf_stat(output, ("task-clock", "page-faults"), gate)
    worker = [sys.executable, "-c", WORKER, str(PROJECT), json.dumps(task_of(gate))]
    done = subprocess.run([*command, *worker], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    cpu_s = json.loads(done.stdout)
    (counted_s,) = [row.count / 1e3 for row in read_rows(output) if row.event == "task-clock"]
    # The window's 0.5 s, of which 0.4 s are the threads'; the rest of the process is 0.9 s.
    assert cpu_s["inside"] >= 0.5
    assert cpu_s["whole"] >= cpu_s["inside"] + 0.9
    assert cpu_s["inside"] * 0.98 <= counted_s <= cpu_s["inside"] + 0.2


@real_perf
def test_two_real_perfs_obey_one_after_the_other(tmp_path):
    gates = [Gate.make(tmp_path, name) for name in ("cores", "memory")]
    outputs = [tmp_path / "cores.csv", tmp_path / "memory.csv"]
    commands = [
        perf_stat(out, ("task-clock",), gate) for out, gate in zip(outputs, gates, strict=True)
    ]
    worker = [sys.executable, "-c", WORKER, str(PROJECT), json.dumps(task_of(*gates))]
    done = subprocess.run([*commands[1], *commands[0], *worker], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    inside_s = json.loads(done.stdout)["inside"]
    counted_s = [row.count / 1e3 for output in outputs for row in read_rows(output)]
    assert len(counted_s) == 2
    assert min(counted_s) >= inside_s * 0.98
    assert max(counted_s) <= inside_s + 0.2


class Listener:
    """perf's side: both FIFOs open for reading and writing; answers what it is told."""

    def __init__(self, folder, name="perf", answers=((b"ack\n\0",), (b"ack\n\0",))):
        self.gate = Gate.make(folder, name)
        self._ends = [
            os.open(path, os.O_RDWR) for path in (self.gate.control, self.gate.acknowledge)
        ]
        self.heard = []
        self._thread = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self._thread.start()

    def _listen(self, answers):
        for pieces in answers:
            self.heard.append(os.read(self._ends[0], 100))
            for piece in pieces:
                os.write(self._ends[1], piece)

    def end(self):
        self._thread.join()
        for end in self._ends:
            os.close(end)


def test_commands_are_sent_around_the_body(tmp_path):
    listener = Listener(tmp_path)
    with counting(task_of(listener.gate)):
        assert listener.heard == [b"enable\n"]
    assert listener.heard == [b"enable\n", b"disable\n"]


def test_answers_may_come_in_pieces_and_with_the_rest_of_the_one_before(tmp_path):
    listener = Listener(tmp_path, answers=((b"a", b"ck\n"), (b"\0", b"ack\n\0")))
    with counting(task_of(listener.gate)):
        pass
    assert listener.heard == [b"enable\n", b"disable\n"]


@pytest.mark.parametrize("pieces", [(b"ack",), (b"\0",), (b"nack",)])
def test_what_is_no_answer_is_not_taken_for_one(tmp_path, pieces):
    listener = Listener(tmp_path, answers=(pieces,))
    with pytest.raises(UserError, match="did not answer"), counting(task_of(listener.gate), 0.05):
        pytest.fail("there was no answer")


def test_a_worker_without_a_perf_is_told_so_at_once(tmp_path):
    gate = Gate.make(tmp_path, "perf")
    with (
        pytest.raises(UserError, match=r"perf does not listen at .*perf\.control \(No such device"),
        counting(task_of(gate)),
    ):
        pytest.fail("nobody counts")


def test_fifos_that_are_gone_are_no_traceback(tmp_path):
    gate = Gate(tmp_path / "a", tmp_path / "b")
    with (
        pytest.raises(UserError, match=r"does not listen at .*/a \(No such file"),
        counting(task_of(gate)),
    ):
        pytest.fail("nobody counts")


def test_a_perf_that_is_silent_is_not_waited_for_forever(tmp_path):
    listener = Listener(tmp_path, answers=())
    with (
        pytest.raises(UserError, match=r"did not answer 'enable' in 0\.05 s; .*console\.log"),
        counting(task_of(listener.gate), answer_s=0.05),
    ):
        pytest.fail("nobody counts")


def test_a_perf_that_dies_in_the_window_is_an_error(tmp_path):
    listener = Listener(tmp_path, answers=((b"ack\n\0",),))
    with (
        pytest.raises(UserError, match="perf has ended before 'disable'"),
        counting(task_of(listener.gate)),
    ):
        listener.end()


def test_an_error_in_the_body_comes_out_as_it_is(tmp_path):
    listener = Listener(tmp_path)
    with pytest.raises(ValueError, match="of the step"), counting(task_of(listener.gate)):
        raise ValueError("of the step")
    assert listener.heard == [b"enable\n"]


def test_the_memory_controllers_perf_counts_around_the_other(tmp_path):
    heard = []
    listeners = [Listener(tmp_path, name) for name in ("cores", "memory")]
    with counting(task_of(*(listener.gate for listener in listeners))):
        heard = [list(listener.heard) for listener in listeners]
    assert heard == [[b"enable\n"], [b"enable\n"]]
    assert [listener.heard[-1] for listener in listeners] == [b"disable\n"] * 2


def test_no_descriptor_is_left_open(tmp_path):
    listener = Listener(tmp_path)
    before = sum(1 for _ in Path("/dev/fd").iterdir())
    with counting(task_of(listener.gate)):
        pass
    gate = Gate.make(tmp_path, "nobody")
    with pytest.raises(UserError), counting(task_of(gate)):
        pytest.fail("nobody counts")
    assert sum(1 for _ in Path("/dev/fd").iterdir()) == before
