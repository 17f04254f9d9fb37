"""A second search of a large selection: what it must see, what it may miss, and what it reads."""

import re
import shutil
import sqlite3
import threading
import zlib
from contextlib import closing
from datetime import datetime, timezone

import pytest
import samples
from mlflow.tracking import MlflowClient
from stored_runs import filed

from bench.config import RunConfig
from tracking import schema
from tracking.reading import incremental
from tracking.reading.incremental import KeptSearch, kept_file, read_kept
from tracking.reading.tracked_runs import search_runs, time_prefixes
from tracking.store import public_uri
from tracking.upload.upload import upload

MEASURED = f"tags.`{schema.KIND}` = 'measurement'"
DAY_MS = 86_400_000
KNOWN = 10
#: The newest upload, since clocks may differ, and the one whose place tells how many there are.
ALWAYS_READ = 2
START_MS = 1_700_000_000_000


class Runs:
    """The runs of a store, filled as our upload would."""

    def __init__(self, uri, made=0):
        self.uri, self.made = uri, made
        self.client = MlflowClient(uri)

    def add(self, *, start_ms=None, uploaded_at=None, whole=True, ended=True, tags=None):
        self.made += 1
        tags = {schema.KIND: "measurement", "number": str(self.made), **(tags or {})}
        if whole:
            tags |= schema.whole_tags()
        if uploaded_at is not None:
            tags[schema.UPLOADED_AT] = uploaded_at
        start_ms = START_MS + self.made * 1000 if start_ms is None else start_ms
        run = self.client.create_run("0", start_time=start_ms, tags=tags)
        self.client.log_metric(run.info.run_id, "speed", self.made)
        self.client.log_param(run.info.run_id, "arch", "resnet18")
        if ended:
            self.client.set_terminated(run.info.run_id)
        return run.info.run_id

    def kept(self, **how):
        return KeptSearch(self.uri, **how).runs(MEASURED)

    def all(self):
        return search_runs(MEASURED, tracking_uri=self.uri)

    @property
    def file(self):
        return kept_file(public_uri(self.uri), None, MEASURED)


@pytest.fixture(scope="module")
def known_runs(empty_store, tmp_path_factory):
    """A store with ten runs, to copy."""
    store = shutil.copy(empty_store, tmp_path_factory.mktemp("known"))
    runs = Runs(f"sqlite:///{store}")
    for day in range(1, KNOWN + 1):
        runs.add(uploaded_at=f"2026-01-{day:02}T00:00:00.000000Z")
    return store


@pytest.fixture
def runs(known_runs, tmp_path, monkeypatch):
    """Ten runs in a store of this test's own, searched once."""
    monkeypatch.setattr(incremental, "KEPT_FROM", 2)
    runs = Runs(f"sqlite:///{shutil.copy(known_runs, tmp_path)}", KNOWN)
    assert runs.kept() == runs.all()
    return runs


@pytest.fixture
def read_ids(monkeypatch):
    """Ids of every run that the server is made to tell, with how often whole selections were."""
    ids, search = [], MlflowClient.search_runs

    def watched(self, experiment_ids, *args, **how):
        page = search(self, experiment_ids, *args, **how)
        ids.extend(run.info.run_id for run in page)
        return page

    monkeypatch.setattr(MlflowClient, "search_runs", watched)
    return ids


@pytest.mark.slow
def test_only_what_is_new_is_read_and_late_uploads_of_old_runs_come_in_their_place(runs, read_ids):
    assert runs.kept() == runs.all()
    read_ids.clear()
    assert len(runs.kept()) == KNOWN
    assert len(set(read_ids)) <= ALWAYS_READ
    new = runs.add()
    late = runs.add(start_ms=START_MS - 300 * DAY_MS)
    read_ids.clear()
    found = runs.kept()
    assert len(set(read_ids)) <= ALWAYS_READ + 2
    assert (found[0].run_id, found[-1].run_id) == (new, late)
    assert found == runs.all()


@pytest.mark.parametrize("year", [2019, 2099])
@pytest.mark.slow
def test_a_clock_that_is_years_wrong_hides_no_run(runs, read_ids, year):
    wrong = runs.add(uploaded_at=f"{year}-01-01T00:00:00.000000Z")
    runs.kept()
    new = runs.add()
    read_ids.clear()
    assert {wrong, new} <= {run.run_id for run in runs.kept()}
    if year == 2099:  # what is uploaded with a clock that is late costs reading all
        assert len(set(read_ids)) <= ALWAYS_READ + 2


@pytest.mark.slow
def test_a_run_that_ended_since_is_read_again(runs, read_ids):
    running, never_whole = runs.add(whole=False, ended=False), runs.add(whole=False)
    cut = runs.add(uploaded_at="2025-06-01T00:00:00.000000Z", ended=False)
    by_id = {run.run_id: run for run in runs.kept()}
    assert (by_id[running].status, by_id[cut].status) == ("RUNNING", "RUNNING")
    runs.client.log_metric(running, "speed", 99)
    runs.client.log_metric(never_whole, "speed", 7)
    for key, value in schema.whole_tags().items():
        runs.client.set_tag(running, key, value)
    runs.client.set_terminated(running, "FINISHED")
    runs.client.set_terminated(cut, "KILLED")
    read_ids.clear()
    by_id = {run.run_id: run for run in runs.kept()}
    assert len(set(read_ids)) <= ALWAYS_READ + 3
    assert (by_id[running].status, by_id[cut].status) == ("FINISHED", "KILLED")
    assert (by_id[running].metrics["speed"], by_id[never_whole].metrics["speed"]) == (99, 7)


@pytest.mark.slow
def test_deleted_runs_are_gone_and_restored_ones_back(runs, read_ids):
    first, second = [run.run_id for run in runs.kept()][4:6]
    for run_id in (first, second):
        runs.client.delete_run(run_id)
    read_ids.clear()
    assert {first, second}.isdisjoint(run.run_id for run in runs.kept())
    assert len(set(read_ids)) <= ALWAYS_READ + 2
    assert len(runs.kept()) == KNOWN - 2
    runs.client.restore_run(first)
    assert runs.kept() == runs.all()
    runs.client.delete_run(first)
    new = runs.add()  # as many runs as before, but others
    ids = [run.run_id for run in runs.kept()]
    assert first not in ids
    assert new in ids


@pytest.mark.slow
def test_a_renamed_run_shows_with_refresh_and_a_retagged_one_when_it_leaves(runs):
    renamed, tagged = [run.run_id for run in runs.kept()][4:6]
    runs.client.update_run(renamed, name="by hand")
    assert "by hand" not in [run.name for run in runs.kept()]  # as the documentation says
    assert "by hand" in [run.name for run in runs.kept(refresh=True)]
    assert "by hand" in [run.name for run in runs.kept()]
    runs.client.set_tag(tagged, schema.KIND, "no longer")
    assert tagged not in [run.run_id for run in runs.kept()]


def test_a_new_store_of_the_same_name_has_nothing_of_the_old_one(runs, tmp_path):
    with closing(sqlite3.connect(tmp_path / "mlflow.db", timeout=120)) as connection, connection:
        connection.execute("UPDATE experiments SET creation_time = creation_time + 1")
        connection.execute("UPDATE latest_metrics SET value = 1000")
    assert {run.metrics["speed"] for run in runs.kept()} == {1000.0}


def test_a_damaged_file_is_read_from_the_server_again(runs):
    text = runs.file.read_bytes()
    head, _, columns = text.partition(b"\n")
    middle = len(columns) // 2
    one_bit = columns[:middle] + bytes([columns[middle] ^ 1]) + columns[middle + 1 :]
    no_columns = b"{}"
    for damaged in (
        text[: len(text) // 2],
        head,
        head + b"\n" + one_bit,
        b"\xff\xfe" + text,
        text.replace(b'"format": 2', b'"format": 1'),
        text.replace(b'"format"', b'"other"'),
        re.sub(rb'"crc32": \d+', b'"crc32": %d' % zlib.crc32(no_columns), head)
        + b"\n"
        + no_columns,
    ):
        assert damaged != text
        runs.file.write_bytes(damaged)
        assert read_kept(runs.file) is None
        assert runs.kept() == runs.all()
        assert read_kept(runs.file) is not None


@pytest.mark.slow
def test_two_searches_at_once_both_tell_all_and_leave_a_whole_file(runs):
    for _ in range(3):
        runs.add()
    found, together = [], threading.Barrier(4)

    def search():
        together.wait()
        found.append(runs.kept())

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [runs.all()] * 4
    assert len(read_kept(runs.file).runs) == KNOWN + 3


@pytest.mark.slow
def test_a_small_selection_is_read_whole_and_not_kept(runs, monkeypatch):
    monkeypatch.setattr(incremental, "KEPT_FROM", KNOWN + 1)
    runs.kept()
    assert not runs.file.exists()
    runs.client.update_run(runs.kept()[0].run_id, name="by hand")
    assert "by hand" in [run.name for run in runs.kept()]


def test_a_server_that_pages_otherwise_is_read_whole(runs, monkeypatch):
    monkeypatch.setattr(
        "tracking.reading.tracked_runs.SearchUtils.create_page_token", lambda _: b"not a token"
    )
    runs.add()
    assert runs.kept() == runs.all()


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-11-21T17:50", "2026-11-21T18:05", ["2026-11-21T17", "2026-11-21T18"]),
        ("2026-11-29T22:10", "2026-12-02T05:00",
         ["2026-11-29T22", "2026-11-29T23", "2026-11-30", "2026-12"]),
        ("2025-11-30T23:59", "2026-06-01T00:00", ["2025-11-30T23", "2025-12", "2026"]),
        ("2024-02-28T23:00", "2024-03-01T00:00", ["2024-02-28T23", "2024-02-29", "2024-03"]),
        ("2026-11-21T18:00", "2026-11-21T17:59", []),
    ],
)  # fmt: skip
def test_times_begin_with_few_prefixes_that_leave_no_gap(since, until, expected):
    since, until = (datetime.fromisoformat(f"{text}+00:00") for text in (since, until))
    assert list(time_prefixes(since, until)) == expected


@pytest.mark.slow
def test_what_our_upload_leaves_on_a_server_is_final_and_read_once(
    server, read_ids, tmp_path, monkeypatch
):
    monkeypatch.setattr(incremental, "KEPT_FROM", 1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    wanted = f"tags.`{schema.CAMPAIGN}` = 'final'"
    config = RunConfig(campaign="final")
    began = schema.sortable(datetime.now(timezone.utc))
    ids = {upload(*filed(tmp_path, samples.run_record(config))) for _ in range(3)}
    found = KeptSearch().runs(wanted)
    assert {run.run_id for run in found} == ids
    for run in found:
        assert began <= run.tags[schema.UPLOADED_AT] <= schema.sortable(datetime.now(timezone.utc))
        assert run.status == "FINISHED"
    kept = read_kept(kept_file(public_uri(server), None, wanted))
    assert set(kept.runs.run_ids) == ids
    assert KeptSearch().runs(wanted) == search_runs(wanted)
