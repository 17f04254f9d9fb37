"""Reading all runs over many pages: none lost, none twice, whatever happens between two pages."""

import gc
import shutil
import threading

import pytest
from mlflow.tracking import MlflowClient

from tracking.reading.pages import all_runs, paused_collector
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy

START_MS = 1_700_000_000_000


class Store:
    """A store of runs that began so many milliseconds after a time."""

    def __init__(self, uri, began_ms):
        self.client = MlflowClient(uri)
        self.began = {}
        for each in began_ms:
            self.add(each)

    def add(self, began_ms):
        run = self.client.create_run("0", start_time=START_MS + began_ms)
        self.began[run.info.run_id] = began_ms
        return run.info.run_id

    def in_order(self):
        return sorted(self.began, key=lambda run_id: (-self.began[run_id], run_id))

    def pages(self, page_size, filter_string=""):
        ask = RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
        found = all_runs(self.client, ask, ["0"], filter_string, page_size=page_size)
        return (run.info.run_id for run in found)


@pytest.fixture
def store(empty_store, tmp_path):
    copy = shutil.copy(empty_store, tmp_path)
    return lambda began_ms: Store(f"sqlite:///{copy}", began_ms)


@pytest.fixture
def asked(monkeypatch):
    """The filter and the token of every page that was asked for."""
    asked, search = [], MlflowClient.search_runs

    def watched(self, experiment_ids, filter_string, **how):
        asked.append((filter_string, how["page_token"]))
        return search(self, experiment_ids, filter_string, **how)

    monkeypatch.setattr(MlflowClient, "search_runs", watched)
    return asked


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 7, 8, 9, 100])
@pytest.mark.parametrize(
    "began_ms",
    [[], [0], list(range(8)), [0, 0, 1, 1, 1, 2, 3, 3], [5] * 8, [1, 2, 2, 2, 2, 2, 2, 3]],
    ids=["none", "one", "apart", "some together", "all together", "most together"],
)
def test_runs_that_began_together_are_neither_lost_nor_doubled(store, began_ms, page_size):
    runs = store(began_ms)
    assert list(runs.pages(page_size)) == runs.in_order()


def test_no_page_makes_the_server_count_the_runs_before_it(store, asked):
    runs = store(range(6))
    assert list(runs.pages(2, "attributes.status = 'RUNNING'")) == runs.in_order()
    assert all(token is None for _, token in asked)
    assert asked[0] == ("attributes.status = 'RUNNING'", None)
    assert (
        asked[1][0] == f"attributes.status = 'RUNNING' and attributes.start_time <= {START_MS + 4}"
    )


def test_a_run_deleted_between_two_pages_hides_no_other(store):
    runs = store(range(10))
    order, pages = runs.in_order(), runs.pages(4)
    found = [next(pages) for _ in range(4)]
    runs.client.delete_run(order[0])
    runs.client.delete_run(order[3])  # at the page's edge
    runs.client.delete_run(order[6])  # not read yet
    assert [*found, *pages] == [run_id for run_id in order if run_id != order[6]]


def test_a_run_that_begins_between_two_pages_doubles_no_other(store):
    runs = store([0, 1, 2, 3, 3, 3, 3])
    order, pages = runs.in_order(), runs.pages(2)
    found = [next(pages), next(pages)]
    runs.add(9)
    together = runs.add(3)
    found += pages
    assert len(set(found)) == len(found)
    assert set(order) <= set(found) <= {*order, together}


def test_the_collector_runs_again_after_pauses_that_overlap():
    assert gc.isenabled()
    inside, leave = threading.Barrier(2), threading.Barrier(2)

    def other():
        with paused_collector():
            inside.wait()
            leave.wait()

    thread = threading.Thread(target=other)
    with paused_collector():
        thread.start()
        inside.wait()
        assert not gc.isenabled()
    assert not gc.isenabled()  # the other still reads
    leave.wait()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
