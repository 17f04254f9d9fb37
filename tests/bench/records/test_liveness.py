"""Whether a process runs, by real processes."""

import os
import subprocess
import sys
import time

import psutil

from bench.records.folders import is_running


def test_a_zombie_does_not_run():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()  # ends with the child, which nothing has reaped yet
    process = psutil.Process(child.pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not is_running(child.pid)
    assert not is_running(process)
    child.wait()


def test_a_process_that_may_not_be_looked_at_runs(monkeypatch):
    def refuse(process):
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "status", refuse)
    assert is_running(os.getpid())
