import pytest


@pytest.fixture
def only_programs(tmp_path, monkeypatch):
    """Return a function that puts scripts on a PATH that holds nothing else."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return write
