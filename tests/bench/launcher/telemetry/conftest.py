import subprocess
import sys

import psutil
import pytest
from scripted_hardware import FakeClock, ScriptedNvml


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def nvml():
    return ScriptedNvml()


@pytest.fixture
def child():
    """Return a function that starts a Python program and waits for its first line."""
    started = []

    def start(program: str) -> subprocess.Popen:
        popen = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        started.append(popen)
        popen.first_line = popen.stdout.readline().strip()
        return popen

    yield start
    for popen in started:
        if popen.poll() is None:
            for process in psutil.Process(popen.pid).children(recursive=True):
                process.kill()
        popen.kill()
        popen.communicate()
