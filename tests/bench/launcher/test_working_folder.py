"""Files of the user's own where a command is typed: none takes the place of another module."""

import os
import sys

import pytest
from worker_processes import small_run

from bench.launcher.measurement import launch_measurement
from bench.records.folders import RecordFolder

pytestmark = pytest.mark.slow

FILES = ("bench/__init__.py", "commands/__init__.py", "torch/__init__.py", "profile.py",
         "queue.py", "random.py", "statistics.py", "pickle.py", "socket.py")  # fmt: skip


@pytest.fixture
def crowded(mlproject_command, monkeypatch):
    """The working folder, with modules that fail, and the user's model beside them."""
    monkeypatch.setattr(sys, "path", sys.path.copy())  # a model counted here adds the folder
    folder = mlproject_command.folder
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"raise RuntimeError('foreign {name}')")
    (folder / "mynets.py").write_text("from crashing_models import small\n")
    return folder


def run_of(**changes):
    return small_run(**{"arch": "mynets:small", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": "fakedata", "workers": 1},
        pytest.param({"devices": 2}, marks=pytest.mark.long),
        pytest.param({"compile": "default"}, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("path", ["", os.pathsep])
def test_no_file_of_the_working_folder_is_executed_by_accident(crowded, monkeypatch, changes, path):
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"] + path)  # empty: the working folder
    record = launch_measurement(run_of(**changes), RecordFolder.create(crowded / "records"))
    assert record.outcome == "ok", record.reason


@pytest.mark.parametrize("name", ["bench.nets", "commands.nets", "random"])
def test_a_model_that_another_module_hides_says_so(crowded, mlproject_command, name):
    (crowded / f"{name.replace('.', '/')}.py").write_text("from crashing_models import small\n")
    code, _, err = mlproject_command("complexity", "--arch", f"{name}:small")
    assert code == 2
    assert "rename" in err
