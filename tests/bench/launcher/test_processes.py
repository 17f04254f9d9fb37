"""Real child processes: they compute, allocate, fork, get killed."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from worker_processes import output_of

from bench.errors import Unknown
from bench.launcher.processes import WatchedProcess, terminate_tree
from bench.machine.limits import describe_exit
from bench.records.folders import is_running

posix_only = pytest.mark.skipif(os.name == "nt", reason="signals and rusage are POSIX")

MEBIBYTE = 2**20
#: Computes until it has used a quarter of a second, whatever the machine's load.
BURN = "import time\nwhile time.process_time() < 0.25: pass\n"
WAIT = "import sys\nsys.stdin.read()\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def end_of(watched):
    while (code := watched.poll()) is None:
        time.sleep(0.005)
    return code


def line_of(popen):
    return popen.stdout.readline().strip()


FAMILY = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"


@posix_only
@pytest.mark.parametrize("program", [BURN, FAMILY], ids=["child", "grandchild"])
def test_times_are_those_of_the_child_and_of_what_it_waited_for(start, program):
    readings = iter([10.0, 14.5])
    watched = WatchedProcess(start(f"{program}\nraise SystemExit(3)"), lambda: next(readings))
    assert end_of(watched) == watched.poll() == 3
    figures = watched.figures(7)
    assert figures.user_s + figures.system_s >= 0.25
    assert (figures.real_s, figures.max_rss_bytes, figures.missing) == (4.5, 7, {})


HUNGRY = f"x = bytearray({200 * MEBIBYTE})"
PEAK = f"""
import subprocess, sys
from bench.machine.limits import peak_memory_bytes
if "itself" in sys.argv:
    {HUNGRY}
    del x
if "a child" in sys.argv:
    subprocess.run([sys.executable, "-c", {HUNGRY!r}])
print(peak_memory_bytes())
"""


@posix_only
@pytest.mark.parametrize(("who", "least_mib"), [("itself", 200), ("a child", 200), ("neither", 0)])
def test_a_peak_of_memory_is_that_of_the_largest_process_and_not_its_starters(who, least_mib):
    ballast = bytearray(400 * MEBIBYTE)  # Linux hands it down: ru_maxrss of the started says 400
    peak_mib = int(output_of(PEAK, who)) / MEBIBYTE
    assert least_mib <= peak_mib < least_mib + 150 < len(ballast) / MEBIBYTE


@posix_only
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_is_a_negative_code(start, signum):
    watched = WatchedProcess(start(f"import os\nos.kill(os.getpid(), {int(signum)})\n" + WAIT))
    assert end_of(watched) == -signum
    assert describe_exit(-signum, 0, 0).startswith(f"ended by {signum.name} (signal {int(signum)})")


@posix_only
def test_a_child_that_somebody_else_reaped_has_reasons(start, monkeypatch):
    popen = start(WAIT)
    watched = WatchedProcess(popen)
    popen.stdin.close()
    popen.wait()
    terminate_tree(popen, grace_s=10)  # does nothing
    assert watched.poll() == 0
    figures = watched.figures(Unknown("did not say"))
    assert figures.missing == {
        **dict.fromkeys(("user_s", "system_s"), "the process was reaped before its usage was read"),
        "max_rss_bytes": "did not say",
    }
    monkeypatch.delattr(os, "wait4")  # as on Windows
    watched = WatchedProcess(start(""))
    end_of(watched)
    figures = watched.figures(7)
    assert (figures.user_s, figures.max_rss_bytes) == (None, 7)
    assert figures.missing["system_s"] == "this system does not add up a process and its children"


@posix_only
def test_a_child_saves_its_work_before_its_loaders_are_ended(start):
    # A loader that vanishes would make its parent believe that it crashed.
    popen = start(
        "import signal, subprocess, sys\n"
        f"kin = subprocess.Popen([sys.executable, '-c', {WAIT!r}], stdin=subprocess.PIPE)\n"
        "def save(*_):\n"
        "    print('alive' if kin.poll() is None else 'gone', flush=True)\n"
        "    sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up', flush=True)\n" + WAIT
    )
    watched = WatchedProcess(popen)
    line_of(popen)
    terminate_tree(popen, grace_s=30)
    assert line_of(popen) == "alive"
    assert watched.poll() == 7
    assert watched.figures(7).user_s is not None


@posix_only
def test_a_deaf_child_and_its_deaf_child_are_killed(start):
    popen = start(
        DEAF + "import subprocess, sys\n"
        f"kin = subprocess.Popen([sys.executable, '-c', {DEAF + WAIT!r}])\n"
        "print(kin.pid, flush=True)\n" + WAIT
    )
    watched = WatchedProcess(popen)
    grandchild = int(line_of(popen))
    terminate_tree(popen, grace_s=0.1)
    assert watched.poll() == -signal.SIGKILL
    assert not is_running(grandchild)


@posix_only
def test_orphans_of_a_child_that_died_are_ended_too(start):
    popen = start(
        "import os, signal, subprocess, sys\n"
        f"kin = subprocess.Popen([sys.executable, '-c', {WAIT!r}])\n"
        "print(kin.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    watched = WatchedProcess(popen)
    orphan = int(line_of(popen))
    assert end_of(watched) == -signal.SIGKILL
    assert is_running(orphan)
    terminate_tree(popen, grace_s=0)
    assert not is_running(orphan)


def test_a_process_that_got_a_reaped_childs_number_is_left_alone():
    with subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE) as stranger:
        terminate_tree(SimpleNamespace(pid=stranger.pid, returncode=0), grace_s=0)
        assert stranger.poll() is None
        stranger.stdin.close()
        assert stranger.wait() == 0


STRUCK = "the kernel's out-of-memory killer struck"


@pytest.mark.parametrize(
    ("code", "before", "after", "words"),
    [
        (0, 1, 9, "exit code 0"),
        (1, 0, 0, "exit code 1"),
        (1, None, None, "exit code 1"),
        (-9, 4, 5, f"ended by SIGKILL (signal 9): {STRUCK} (1 killed since then)"),
        (1, 4, 6, f"exit code 1: {STRUCK} (2 killed since then)"),
        (-9, 4, 4, "ended by SIGKILL (signal 9), not by the out-of-memory killer"),
        (-9, None, 4, "ended by SIGKILL (signal 9)"),
        (-11, 0, 0, "ended by SIGSEGV (signal 11)"),
        (-250, 0, 0, "ended by an unnamed signal (signal 250)"),
        (3221225477, None, None, "ended by exception 0xC0000005"),
    ],
)
def test_an_end_in_words(code, before, after, words):
    assert describe_exit(code, before, after) == words
