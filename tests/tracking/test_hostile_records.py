"""Record folders that somebody else wrote: read as data, and never a way out of their place."""

import json
import os

import pytest
import samples
from stored_runs import filed

from bench.errors import UserError
from bench.records.folders import RecordFolder, record_folders
from mlproject import main
from tracking import schema
from tracking.connection import Server
from tracking.tracked_runs import download_record, search_runs
from tracking.upload.upload import LockedError, uploading


@pytest.fixture
def records(embedded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "records"


@pytest.mark.slow
def test_a_linked_record_folder_is_not_followed(records, tmp_path):
    filed(tmp_path / "elsewhere")
    records.mkdir()
    [real] = (tmp_path / "elsewhere").iterdir()
    (records / real.name).symlink_to(real, target_is_directory=True)
    assert list(record_folders(records)) == []
    assert main(["sync"]) == 0
    assert not (real / ".uploading.lock").exists()


@pytest.mark.slow
def test_a_folder_that_is_no_record_costs_itself_alone_and_is_named(records, capsys):
    good, _ = filed(records)
    hostile = samples.run_record().model_dump(mode="json")
    hostile["__class__"] = {"__reduce__": ["os.system", "touch pwned"]}
    texts = (
        json.dumps(hostile),
        '{"kind": "measurement", "config": ' + "[" * 100_000,
        '{"kind": "imported", "record_id": "../../x", "arch": "a"}',
        good.record.read_text().replace(good.record_id, "../../../etc/x"),
    )
    bad = [filed(records)[0] for _ in texts]
    for folder, text in zip(bad, texts, strict=True):
        folder.record.write_text(text)
    bad.append(filed(records)[0])
    bad[-1].record.unlink()
    bad[-1].record.mkdir()
    # half written by another version
    for config in ('{"arch": "resnet18", "from_the_future": 1}', "[]", "{", ""):
        bad.append(RecordFolder.create(records))
        bad[-1].config.write_text(config)
    assert main(["sync"]) == 1
    said = capsys.readouterr()
    assert "1 uploaded, 9 failed" in said.out
    reasons = [*["not a record"] * 3, "", "cannot be read", *["not of this version"] * 4]
    for folder, reason in zip(bad, reasons, strict=True):
        [line] = [line for line in said.err.splitlines() if folder.record_id in line]
        assert reason in line
    assert not os.path.lexists("pwned")


def test_a_linked_lock_or_note_does_not_reach_the_file_it_points_to(records, tmp_path):
    folder, _ = filed(records)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    lock = folder.path / ".uploading.lock"
    lock.symlink_to(precious)
    with pytest.raises(LockedError, match="link"), uploading(folder, 0.0):
        pass
    lock.unlink()
    # a run of another machine's project, or text that is no run's id
    for note in (precious, None):
        folder.project_run.unlink(missing_ok=True)
        if note is not None:
            folder.project_run.symlink_to(note)
        else:
            folder.project_run.write_text("../../0/x'; DROP TABLE runs")
        assert main(["sync"]) == 0
    assert precious.read_text() == "kept"
    assert len(search_runs()) == 1


def test_a_run_id_that_leads_out_of_the_cache_is_refused():
    for run_id in ("../../x", "a/b", "", "x" * 99, "..", "a\\b"):
        with pytest.raises(UserError, match="no run's id"):
            download_record(run_id)


def test_text_of_a_record_cannot_become_markup_in_the_ui(records):
    record = samples.failed_record("crashed", "<script>alert(1)</script> | [x](javascript:x)")
    filed(records, record)
    assert main(["sync"]) == 0
    [run] = search_runs()
    assert "<script" not in run.tags["mlflow.note.content"]


@pytest.mark.slow
def test_a_terminal_obeys_no_name_of_a_run(records, tmp_path, capsys):
    filed(records)
    assert main(["sync"]) == 0
    [run] = search_runs()
    Server().client.set_tag(run.run_id, schema.RUN_NAME, "\x1b]0;mine\x07\r\nverdict clean")
    assert search_runs()[0].name.isprintable()
    capsys.readouterr()
    source, target = os.environ["MLFLOW_TRACKING_URI"], f"sqlite:///{tmp_path}/to.db"
    assert main(["sync", "--from", source, "--to", target]) == 0
    out = capsys.readouterr().out
    assert "1 copied" in out
    assert "verdict clean" in out
    assert all(line.isprintable() for line in out.splitlines())
    assert "verdict clean" not in (line.strip() for line in out.splitlines())
