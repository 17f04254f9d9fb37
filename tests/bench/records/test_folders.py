"""Record folders: whole or not there, and never lost to a full disk."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal
from worker_processes import output_of

from bench.errors import UserError
from bench.launcher.measurement import write_exports
from bench.records import Account, Job, folders
from bench.records.folders import (
    RecordFolder,
    cache_folder,
    is_running,
    read_records,
    readable_records,
    record_folders,
    write_atomically,
)
from bench.records.journal import JournalReader, JournalWriter
from bench.records.measurement import RankAccount


def test_a_folder_without_its_record_is_half_written(tmp_path):
    whole, half = RecordFolder.create(tmp_path), RecordFolder.create(tmp_path)
    for folder in (whole, half):
        folder.write(folder.config, Job(config=samples.run_record().config))
    whole.write(whole.record, samples.run_record(record_id=whole.record_id))
    assert [record.record_id for record in read_records(tmp_path)] == [whole.record_id]
    assert len(list(record_folders(tmp_path))) == 2
    assert half.read_record() is None


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    write_atomically(path, "first")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_atomically(path, "second")
    assert caught.value.filename == str(path)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_the_reserve_is_real_room_and_is_given_back(tmp_path):
    folder = RecordFolder.create(tmp_path)
    held = sum(file.stat().st_blocks * 512 for file in folder.path.iterdir())
    assert held >= 4 * 2**20
    folder.release_reserve()
    assert list(folder.path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_named_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = refusal(RecordFolder.create, tmp_path / "file")
    assert re.search(r"records='.*file'.*--records", message)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's full device")
def test_a_full_disk_is_named(tmp_path, monkeypatch):
    real = RecordFolder.__init__

    def on_a_full_disk(self, path):
        real(self, path)
        self._reserve = self._reserve.__class__("/dev/full")

    monkeypatch.setattr(RecordFolder, "__init__", on_a_full_disk)
    monkeypatch.setattr(RecordFolder, "release_reserve", lambda self: None)
    with pytest.raises(UserError, match="disk is full"):
        RecordFolder.create(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda record: '{"kind": "measurement"',
        lambda record: json.dumps(record | {"__class__": "subprocess.Popen"}),
        lambda record: json.dumps(record | {"complexity": {"step_flops": 10**400}}),
    ],
    ids=["damaged", "hostile", "too large"],
)
def test_a_record_that_is_none_is_refused_by_name(tmp_path, change):
    folder = RecordFolder.create(tmp_path)
    folder.record.write_text(change(samples.run_record().model_dump(mode="json")))
    with pytest.raises(UserError, match=rf"{folder.record_id}.*not a record of this version"):
        folder.read_record()


def test_a_closed_folder_does_not_name_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "anna"))
    folder = RecordFolder.create(tmp_path / "records")
    why = f"no file {tmp_path}/anna/weights.pt"
    record = samples.failed_record("crashed", why).replaced(script={"arguments": why})
    folder.console.write_bytes(f"Traceback {tmp_path}/anna/x.py \udc80".encode(errors="replace"))
    folder.journal.write_text(json.dumps({"reason": why}))
    closed = folder.close(record)
    assert closed.reason == closed.script["arguments"] == "no file ~/weights.pt"
    assert folder.read_record() == closed
    assert not [path for path in folder.path.iterdir() if b"anna" in path.read_bytes()]
    assert folder.console.read_bytes().startswith(b"Traceback ~/x.py")
    other = samples.run_record()
    assert RecordFolder.create(tmp_path / "records").close(other) is other


def test_a_folder_is_in_use_while_its_owner_lives(tmp_path):
    folder = RecordFolder.create(tmp_path)
    assert not folder.in_use()
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        folder.claim(owner.pid)
        assert folder.in_use()
    finally:
        owner.kill()
        owner.wait()
    assert not folder.in_use()
    folder.claim(os.getpid(), owner.pid)
    assert len(folder._owners_running()) == 1
    owners = folder.path / "owners.json"
    reused = {"processes": {str(os.getpid()): 12345.0}}  # a number that an earlier process had
    owners.write_text(json.dumps(json.loads(owners.read_text()) | reused))
    assert not folder.in_use()


_DEAD, _ELSEWHERE = {"processes": {"1": 12345.0}}, {"namespace": 7, "processes": {"1": 12345.0}}


@pytest.mark.skipif(sys.platform != "linux", reason="container and boot are Linux's")
@pytest.mark.parametrize(
    ("told", "while_locked", "when_free"),
    [
        (_DEAD, False, False),
        (_ELSEWHERE, True, False),
        (_ELSEWHERE | {"lock": [1, 2]}, True, True),  # of a copy of the folder
        (_ELSEWHERE | {"lock": None}, True, True),  # a file system without locks
        (_DEAD | {"boot": "before"}, True, False),
        (_DEAD | {"boot": "there", "host": ["4e1f", "node7"]}, True, True),
        (_DEAD | {"boot": "there", "host": ["", "container"]}, True, True),
    ],
    ids=["here", "container", "copy", "no locks", "restart", "machine", "image without an id"],
)
def test_an_owner_that_is_not_proved_dead_is_alive(tmp_path, told, while_locked, when_free):
    folder = RecordFolder.create(tmp_path)
    folder.claim(os.getpid())
    owners = folder.path / "owners.json"
    claimed = json.loads(owners.read_text())
    host = told.get("host") or [claimed["host"][0] or "id", claimed["host"][1]]
    owners.write_text(json.dumps(claimed | told | {"host": host}))
    here = folders._place() | {"host": [claimed["host"][0] or "id", claimed["host"][1]]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "_place", lambda: here)
        assert RecordFolder(folder.path).in_use() is while_locked
        folder._held.close()
        assert RecordFolder(folder.path).in_use() is when_free


def test_owners_that_cannot_be_read_are_alive_and_who_leaves_leaves_nothing(tmp_path):
    folder = RecordFolder.create(tmp_path)
    (folder.path / "owners.json").mkdir()
    assert folder.in_use()
    (folder.path / "owners.json").rmdir()
    folder.claim(os.getpid())
    folder.leave()
    assert not folder.in_use()
    assert list(folder.path.iterdir()) == []


def test_a_user_without_a_home_has_a_cache_in_the_temporary_folder(monkeypatch, tmp_path):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_folder() == tmp_path / "mlproject"


def test_a_clock_that_is_set_changes_no_owner(tmp_path, monkeypatch):
    folder, booted_s = RecordFolder.create(tmp_path), psutil.boot_time()
    folder.claim(os.getpid())
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted_s + 3600)
    assert folder.in_use()


def test_a_worker_whose_folder_is_gone_tells_its_launcher_in_another_place(tmp_path, capsys):
    folder = RecordFolder.create(tmp_path / "records")
    shutil.rmtree(tmp_path / "records")
    job, account = Job(config=samples.run_record().config), Account.of_none("oom", "no room")
    folder.write(folder.config, job)
    folder.write(folder.worker, account)
    rank = RankAccount.of("ok", rank=3, outcome="ok", cause="own", ended_unix_s=1.0)
    folder.write(folder.rank(3), rank)
    assert (folder.read_job(), folder.read_worker(), folder.said()) == (job, account, "")
    assert [rank.rank for rank in folder.read_ranks()] == [3]
    record = samples.run_record(record_id=folder.record_id)
    assert folder.close(record) == record
    write_exports(folder, record)
    assert folder.problem is not None
    assert capsys.readouterr().err.count(str(folder.path)) == 1
    assert not folder.spare.exists()
    with pytest.raises(FileNotFoundError):  # of a process that did not measure it
        RecordFolder(folder.path).close(record)
    assert RecordFolder.create(tmp_path / "records").problem is None


def test_readable_records_leave_out_those_of_another_version(tmp_path):
    assert not list(readable_records(tmp_path / "absent"))
    made = [RecordFolder.create(tmp_path, name) for name in ("a", "b", "c", "d")]
    for folder in made[:2]:
        folder.close(samples.run_record(record_id=folder.record_id))
    made[2].record.write_text("{}")
    found = list(readable_records(tmp_path))
    assert [record.record_id for _, record in found] == ["a", "b"]
    assert [folder.path for folder, _ in found] == [folder.path for folder in made[:2]]
    newest_first = readable_records(tmp_path, newest_first=True)
    assert [record.record_id for _, record in newest_first] == ["b", "a"]


def test_a_zombie_does_not_run_and_who_may_not_be_looked_at_does(monkeypatch):
    def refuse(process):
        raise psutil.AccessDenied(process.pid)

    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()  # ends with the child, which nothing has reaped yet
    process = psutil.Process(child.pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not is_running(child.pid)
    assert not is_running(process)
    child.wait()
    monkeypatch.setattr(psutil.Process, "status", refuse)
    assert is_running(os.getpid())


# The worker's journal, as its launcher reads it while it grows


def test_events_arrive_once_in_order_with_their_clock(tmp_path):
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    assert reader.new_events() == []
    ticks = iter([1.0, 2.0, 3.0])
    writer = JournalWriter(path, lambda: next(ticks))
    writer.note("started")
    writer.note("warmup", seconds=0.5)
    first = reader.new_events()
    writer.note("window_started")
    second = reader.new_events()
    assert [(e.name, e.clock_s) for e in first + second] == [
        ("started", 1.0),
        ("warmup", 2.0),
        ("window_started", 3.0),
    ]
    assert first[1].facts == {"seconds": 0.5}
    assert reader.new_events() == []


@given(st.lists(st.integers(0, 400), max_size=8))
def test_a_line_read_while_it_is_written_is_read_once_it_is_whole(tmp_path_factory, cuts):
    folder = tmp_path_factory.mktemp("journal")
    whole = folder / "whole"
    for number in range(5):
        JournalWriter(whole, lambda: 1.0).note("event", number=number)
    content = whole.read_bytes()
    growing = folder / "growing"
    reader = JournalReader(growing)
    seen = []
    for cut in [*sorted(min(cut, len(content)) for cut in cuts), len(content)]:
        growing.write_bytes(content[:cut])
        seen += [event.facts["number"] for event in reader.new_events()]
    assert seen == list(range(5))


def test_a_journal_that_cannot_be_written_does_not_end_the_measurement(tmp_path):
    JournalWriter(tmp_path / "missing" / "journal.jsonl").note("started")


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on this kind of machine")
def test_a_line_that_a_full_disk_cut_is_lost_and_no_other(tmp_path):
    program = """
import resource, signal, sys
from pathlib import Path
from bench.records.journal import JournalWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
writer = JournalWriter(path, lambda: 1.0)
writer.note("started")
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, resource.RLIM_INFINITY))
writer.note("imported")
writer.note("device")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.note("ended")
"""
    path = tmp_path / "journal.jsonl"
    output_of(program, str(path))
    assert len(path.read_text().splitlines()) > 2  # ten bytes of a line are there
    assert [event.name for event in JournalReader(path).new_events()] == ["started", "ended"]


@pytest.mark.parametrize("line", ["{", "null", "3", '{"event": "a"}', "\x00", "", '["event"]'])
def test_a_line_that_is_no_event_is_passed_over(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    path.write_text(f'{line}\n{{"event": "ended", "clock_s": 1.0}}\n')
    assert [event.name for event in JournalReader(path).new_events()] == ["ended"]
