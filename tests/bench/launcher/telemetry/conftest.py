"""A scripted clock, and a graphics card that says what the test wants."""

import pytest
from fakes import ScriptedClock
from scripted_nvml import ScriptedNvml


@pytest.fixture
def clock():
    return ScriptedClock()


@pytest.fixture
def nvml():
    return ScriptedNvml()
