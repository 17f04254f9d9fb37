"""Real child processes, a scripted clock, and a card that says what the test wants."""

import subprocess
import sys

import pytest
from fakes import ScriptedClock
from scripted_nvml import ScriptedNvml

from bench.launcher.processes import terminate_tree


@pytest.fixture
def clock():
    return ScriptedClock()


@pytest.fixture
def nvml(library):
    card = ScriptedNvml()
    library("nvml", lambda: card)
    return card


@pytest.fixture
def start():
    """Return a function that starts a Python program in a session of its own."""
    started = []

    def launch(program):
        popen = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(popen)
        return popen

    yield launch
    for popen in started:
        terminate_tree(popen, grace_s=0)
        popen.wait()
        popen.stdin.close()
        popen.stdout.close()


@pytest.fixture
def child(start):
    """As `start`, returning once the program has printed its `first_line`."""

    def launch(program):
        popen = start(program)
        popen.first_line = popen.stdout.readline().strip()
        return popen

    return launch
