import pytest
import scripted_perf
from scripted_ncu import ScriptedNcu


@pytest.fixture
def perf_here(programs):
    """Return a function that puts a scripted perf before everything else on the PATH."""
    return lambda **settings: scripted_perf.install(programs, **settings)


@pytest.fixture
def folder_of_ncu(programs, monkeypatch):
    """Return an empty folder that is all there is on PATH."""
    monkeypatch.setenv("PATH", str(programs))
    return programs


@pytest.fixture
def ncu(folder_of_ncu):
    """Return a scripted ncu on PATH."""
    return ScriptedNcu(folder_of_ncu)
