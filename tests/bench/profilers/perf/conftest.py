import os

import pytest
import scripted_perf


@pytest.fixture
def perf_here(tmp_path, monkeypatch):
    """Return a function that puts a scripted perf before everything else on the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def install(**settings):
        return scripted_perf.install(folder, **settings)

    return install
