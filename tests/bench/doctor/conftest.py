import pytest


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
