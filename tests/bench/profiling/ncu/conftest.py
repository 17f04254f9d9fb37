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


@pytest.fixture
def files(tmp_path):
    """Return a function that writes files below a root that looks like a machine's."""
    root = tmp_path / "root"
    root.mkdir()

    def write(texts):
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write
