import os

import pytest
from scripted_ncu import ScriptedNcu


@pytest.fixture
def folder_of_ncu(tmp_path, monkeypatch):
    """Return an empty folder that is all there is on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def ncu(folder_of_ncu):
    """Return a scripted ncu on PATH."""
    if os.name == "nt":
        pytest.skip("a shell script stands in for ncu")
    return ScriptedNcu(folder_of_ncu)
