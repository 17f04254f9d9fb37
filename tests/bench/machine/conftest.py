"""Programs that answer as told."""

import stat
from pathlib import Path

import pytest


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts a shell script on PATH, before all else."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def write(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return write
