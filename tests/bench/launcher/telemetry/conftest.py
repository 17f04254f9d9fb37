import pytest
from fakes import ScriptedClock
from scripted_hardware import ScriptedNvml


@pytest.fixture
def clock():
    return ScriptedClock()


@pytest.fixture
def nvml():
    return ScriptedNvml()
