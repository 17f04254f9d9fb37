"""What a record folder remembers of its uploads."""

import pytest

from bench.records.folders import RecordFolder
from tracking.upload import upload_state


@pytest.fixture
def folder(tmp_path):
    return RecordFolder.create(tmp_path / "records")


def test_each_server_is_remembered_by_itself(folder):
    upload_state.remember(folder, "http://a", "r1", whole=True)
    upload_state.remember(folder, "http://b", None, whole=False)
    assert upload_state.recall(folder, "http://a") == upload_state.Copy("r1", whole=True)
    assert upload_state.recall(folder, "http://b") == upload_state.Copy(None, whole=False)
    assert upload_state.recall(folder, "http://c") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"http://a": 3}', "[" * 100_000])
def test_a_damaged_memory_is_none(folder, text):
    folder.uploaded.write_text(text)
    assert upload_state.recall(folder, "http://a") is None
    upload_state.remember(folder, "http://a", "r1", whole=True)
    assert upload_state.recall(folder, "http://a").whole


def test_an_embedded_store_has_one_name_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    absolute = f"sqlite:///{tmp_path}/mlflow.db"
    assert upload_state.server_name("sqlite:///mlflow.db") == absolute
    assert upload_state.server_name(absolute) == absolute


def test_the_run_that_mlflow_made_is_remembered_before_anything_is_measured(folder, monkeypatch):
    upload_state.remember_project_run(folder)
    assert not folder.uploaded.exists()
    monkeypatch.setenv("MLFLOW_RUN_ID", "abc")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@server:1")
    upload_state.remember_project_run(folder)
    assert upload_state.recall(folder, "http://server:1") == upload_state.Copy("abc", whole=False)


def test_a_folder_is_held_by_one(folder):
    with (
        upload_state.uploading(folder, 0.0),
        pytest.raises(upload_state.LockedError),
        upload_state.uploading(folder, 0.0),
    ):
        pass
    with upload_state.uploading(folder, 0.0):
        pass
