"""What several tests stand on: the project on the path, and no tracking server by accident."""

import os
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))
sys.path.insert(0, str(PROJECT / "tests"))


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch, tmp_path):
    """Tests see none of the user's MLflow settings and leave nothing in their caches."""
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "MLPROJECT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
