"""Every request of an upload, gone wrong in every way: nothing lost, nothing twice, all told."""

import os
import shutil
from itertools import product

import pytest
from faulty_proxy import WAYS
from stored_runs import assert_equals_record, assert_one_run, filed

from bench.records.folders import RecordFolder
from mlproject import main
from tracking.retry import RetryPolicy
from tracking.store import TrackingError, open_client
from tracking.upload.upload import LockedError, upload, uploading

pytestmark = pytest.mark.slow

#: create, four artifacts, one batch, the end.
REQUESTS = 7
#: What the user reads, by what the server does.
MESSAGES = {
    "401": "MLFLOW_TRACKING_USERNAME",
    "403": "right to write",
    "429": "fails (429)",
    "500": "fails (500)",
    "503": "fails (503)",
    "hang": "does not answer",
    "lost": "connection broke",
    "half": "connection broke",
    "refuse": "connection broke",
}


def impatient(way=None):
    """Gives up at the first failure; a server that hangs is not waited for long."""
    return RetryPolicy(0.0, 2.0 if way == "hang" else 30.0)


def test_an_upload_is_these_requests(proxy, tmp_path):
    upload(*filed(tmp_path), fresh=True)
    assert len(proxy.requests) == REQUESTS, proxy.requests


def every(step, points):
    """The points of a grid; all but one of `step` are long, spread over the whole grid."""
    return [
        pytest.param(*point, marks=[pytest.mark.long] if index % step else [])
        for index, point in enumerate(points)
    ]


#: An upload that must look for the record first, each answer lost on its way back.
LOOKING = every(11, product(["lost"], range(1, 12), [False]))


@pytest.mark.parametrize(
    ("way", "number", "fresh"),
    every(20, product(WAYS, range(1, REQUESTS + 1), [True])) + LOOKING,
)
def test_whatever_request_fails_a_later_sync_completes_it_once(
    proxy, store, tmp_path, way, number, fresh
):
    folder, record = filed(tmp_path)
    proxy.fail(number, way)
    with pytest.raises(TrackingError) as caught:
        upload(folder, record, fresh=fresh, ask=impatient(way))
    assert proxy.hit.is_set()
    assert MESSAGES[way] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.away
    proxy.heal()
    upload(folder, record)
    assert_one_run(store, folder, record)


@pytest.mark.parametrize(
    ("way", "number"),
    every(15, product(["refuse", "lost", "half", "500", "503", "429"], range(1, REQUESTS + 1))),
)
def test_a_failure_that_passes_is_not_even_noticed(proxy, store, tmp_path, way, number):
    folder, record = filed(tmp_path)
    proxy.fail(number, way)
    upload(folder, record, fresh=True, ask=RetryPolicy(5.0))
    assert proxy.hit.is_set()
    assert_one_run(store, folder, record)


def test_a_slow_server_that_gets_on_is_not_cut_off(proxy, store, tmp_path):
    proxy.delay_s = 0.3
    folder, record = filed(tmp_path)
    upload(folder, record, ask=RetryPolicy(2.0))  # eleven requests take 3.3 s
    assert_one_run(store, folder, record)


def test_settings_of_the_user_that_repeat_requests_do_not_make_two_runs(
    proxy, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    folder, record = filed(tmp_path)
    proxy.fail(1, "lost")
    upload(folder, record, fresh=True, ask=RetryPolicy(5.0))
    assert_one_run(store, folder, record)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"


def test_refused_credentials_are_not_tried_again(proxy, tmp_path):
    proxy.fail(1, "401", times=100)
    with pytest.raises(TrackingError):
        upload(*filed(tmp_path), fresh=True, ask=RetryPolicy(30.0))
    assert len(proxy.requests) == 1


def test_a_database_that_is_lost_is_told_and_the_record_completed_later(proxy, store, tmp_path):
    folder, record = filed(tmp_path)
    proxy.fail(4, "500")
    with pytest.raises(TrackingError):
        upload(folder, record, fresh=True, ask=impatient())
    with store.locked(), pytest.raises(TrackingError, match="does not answer"):
        upload(folder, record, ask=impatient("hang"))
    upload(folder, record)
    assert_one_run(store, folder, record)


def test_a_server_that_cannot_keep_artifacts_is_told_and_completed_later(
    proxy, store, server_folder, tmp_path
):
    folder, record = filed(tmp_path)
    kept = server_folder / "artifacts"
    kept.rename(server_folder / "kept")
    kept.write_text("a file where the folder was")
    try:
        with pytest.raises(TrackingError, match=r"fails \(500\)"):
            upload(folder, record, ask=impatient())
    finally:
        kept.unlink()
        (server_folder / "kept").rename(kept)
    upload(folder, record)
    assert_one_run(store, folder, record)


def test_a_command_that_cannot_upload_says_so_in_one_line_and_sync_goes_on(
    proxy, store, tmp_path, monkeypatch, capsys
):
    kept = [filed(tmp_path) for _ in range(3)]
    with monkeypatch.context() as hurried:
        hurried.setattr("tracking.retry.AWAY_LIMIT_S", 0.0)
        proxy.fail(16, "503", times=1000)
        assert main(["sync", "--records", str(tmp_path)]) == 3
    [line] = [line for line in capsys.readouterr().err.splitlines() if "mlproject:" in line]
    assert "sync again later" in line
    proxy.heal()
    assert main(["sync", "--records", str(tmp_path)]) == 0
    assert "2 uploaded, 1 there already" in capsys.readouterr().out
    for folder, record in kept:
        assert_one_run(store, folder, record)


@pytest.mark.long
def test_syncs_at_once_upload_each_record_once(proxy, store, tmp_path, mlproject_command):
    filed_here = [filed(tmp_path) for _ in range(4)]
    proxy.delay_s = 0.05  # so that they meet
    syncs = [mlproject_command.start("sync", "--records", str(tmp_path)) for _ in range(2)]
    for sync in syncs:
        _, err = sync.communicate(timeout=180)
        assert sync.returncode == 0, err
    for folder, record in filed_here:
        assert_one_run(store, folder, record)


@pytest.mark.long
def test_syncs_at_once_of_two_copies_of_a_folder_leave_one_run(
    proxy, store, tmp_path, mlproject_command
):
    """As on two machines, which share no lock: the runs are made at once, and one is deleted."""
    folder, record = filed(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    places = [tmp_path / name for name in ("one", "two")]
    proxy.delay_s = 0.3
    syncs = [mlproject_command.start("sync", "--records", place) for place in places]
    for sync in syncs:
        sync.communicate(timeout=180)
    proxy.delay_s = 0.0
    for place, sync in zip(places, syncs, strict=True):
        if sync.returncode:  # its run was deleted while it filled it
            mlproject_command("sync", "--records", place)
    [run_id] = store.active(store.runs_of(record.record_id))
    assert_equals_record(store, run_id, folder, record)


def test_an_upload_that_another_process_holds_is_left_to_it(proxy, store, tmp_path, capsys):
    _, record = filed(tmp_path)
    with uploading(RecordFolder(tmp_path / record.record_id), 0.0):
        assert main(["sync", "--records", str(tmp_path)]) == 0
        with pytest.raises(LockedError), uploading(RecordFolder(tmp_path / record.record_id), 0.0):
            pass
    assert "being uploaded by another process" in capsys.readouterr().out
    assert store.runs_of(record.record_id) == []


@pytest.mark.parametrize("number", [4, pytest.param(9, marks=pytest.mark.long)])
def test_a_sync_killed_in_the_middle_is_completed_by_the_next(
    proxy, store, tmp_path, mlproject_command, number
):
    folder, record = filed(tmp_path)
    proxy.fail(number, "hang")
    killed = mlproject_command.start("sync", "--records", str(tmp_path))
    assert proxy.hit.wait(timeout=300)
    killed.kill()
    killed.communicate(timeout=300)
    proxy.heal()
    upload(folder, record)
    assert_one_run(store, folder, record)


def test_a_run_deleted_by_its_user_before_it_was_whole_is_made_again(proxy, store, tmp_path):
    folder, record = filed(tmp_path)
    proxy.fail(5, "500")
    with pytest.raises(TrackingError):
        upload(folder, record, fresh=True, ask=impatient())
    [cut] = store.runs_of(record.record_id)
    open_client().delete_run(cut)
    run_id = upload(folder, record)
    assert run_id != cut
    assert store.active(store.runs_of(record.record_id)) == [run_id]


def test_a_folder_of_somebody_else_sends_no_file_of_this_machine(proxy, store, tmp_path):
    folder, record = filed(tmp_path / "records")
    secret = tmp_path / "id_rsa"
    secret.write_text("a key")
    (folder.path / "console.log").symlink_to(secret)
    (folder.path / "ncu").mkdir()
    (folder.path / "ncu" / "report.csv").symlink_to(secret)
    (folder.path / "perf").symlink_to(tmp_path)
    (folder.path / "ncu" / "real.csv").write_text("a,b\n")
    run_id = upload(folder, record)
    kept = store.artifacts(run_id)
    assert b"a key" not in kept.values()
    assert kept["ncu/real.csv"] == b"a,b\n"
    assert "console.log" not in kept
