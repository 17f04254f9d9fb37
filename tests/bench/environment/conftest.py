"""A folder that looks like a machine's file system, and programs that answer as told."""

import stat
from pathlib import Path

import pytest


@pytest.fixture
def tree(tmp_path):
    """Return a function that writes files below a root and returns the root."""
    root = tmp_path / "root"
    root.mkdir()

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write


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
