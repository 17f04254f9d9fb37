"""The Colab notebook: as it is kept, and run for real on this machine's processor."""

import re
import sys
import zipfile

import nbformat
import pytest
from notebooks import execute, filled_in, read
from programs import copy_project
from rented_machine import commit

#: Colab's own modules: one secret of two, and a download that is noted.
COLAB = """
import sys, types
class SecretNotFoundError(Exception): pass
class NotebookAccessError(Exception): pass
def get(name):
    if name != "MLFLOW_TRACKING_USERNAME": raise SecretNotFoundError(name)
    return "colab-user"
userdata = types.SimpleNamespace(get=get, SecretNotFoundError=SecretNotFoundError,
    NotebookAccessError=NotebookAccessError)
files = types.SimpleNamespace(download=lambda path: open("downloaded", "w").write(path))
colab = types.ModuleType("google.colab")
colab.userdata, colab.files = userdata, files
sys.modules["google.colab"] = colab
sys.modules.setdefault("google", types.ModuleType("google")).colab = colab
"""


def printed(filled):
    outputs = [output for cell in filled.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output.output_type == "stream")


@pytest.fixture(autouse=True)
def _nothing_is_fetched(monkeypatch):
    """Everything is here already: the notebook must see that."""
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # this kernel, not a user's


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """This checkout as it is now, committed or not, as a repository that can be cloned."""
    folder = copy_project(tmp_path_factory.mktemp("repository"))
    commit(folder)
    return folder


def test_it_asks_for_a_gpu_and_names_no_server():
    notebook = read("colab")
    assert notebook.metadata.accelerator == "GPU"
    assert not [cell for cell in notebook.cells if "://" in cell.source]


@pytest.mark.long
def test_it_measures_tracks_and_brings_the_records_home(tmp_path, repository, monkeypatch):
    uri = f"sqlite:///{tmp_path}/shared.db"
    small = ["iters=2", "warmup_iters=1", "image_size=32", "batch_size=2"]
    filled = filled_in(
        "colab",
        REPOSITORY=str(repository),
        REF="trunk",
        SWEEP="smoke --campaign colab --limit 1 " + " ".join(f"--set {word}" for word in small),
        ROOFS=False,
        TRACKING_URI=uri,
    )
    filled.cells.insert(0, nbformat.v4.new_code_cell(COLAB))
    execute(filled, tmp_path)
    said = printed(filled)
    assert sys.executable in said  # the doctor's first line: this very environment
    assert not list(tmp_path.rglob("pyvenv.cfg"))
    assert "MLFLOW_TRACKING_PASSWORD is not among the secrets" in said
    assert len(re.findall(r"images/s, \w.*, not placed: no ceiling", said)) == 2

    from tracking.tracked_runs import search_runs

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    runs = search_runs()
    assert [run.status for run in runs] == ["FINISHED", "FINISHED"]
    assert (tmp_path / "downloaded").read_text() == str(tmp_path / "records.zip")
    with zipfile.ZipFile(tmp_path / "records.zip") as archive:
        records = [name for name in archive.namelist() if name.endswith("/record.json")]
    assert len(records) == 2
    assert all(name.startswith("records/") for name in records)


@pytest.mark.long
def test_a_sweep_that_fails_brings_its_records_before_it_says_so(tmp_path, repository):
    from nbclient.exceptions import CellExecutionError

    known = {"REPOSITORY": str(repository), "SWEEP": "no-such-matrix", "ROOFS": False}
    filled = filled_in("colab", **known)
    filled.cells = [cell for cell in filled.cells if cell.id != "environment"]  # tried above
    (tmp_path / "records" / "earlier").mkdir(parents=True)
    with pytest.raises(CellExecutionError, match="exit code 2"):
        execute(filled, tmp_path)
    assert (tmp_path / "records.zip").exists()
    assert "no-such-matrix" in printed(filled)
