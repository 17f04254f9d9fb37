"""A server that may be away: asked again while that helps; its address; all runs of many pages."""

import os
import shutil
from functools import partial
from pathlib import Path

import mlflow
import pytest
import requests
from faulty_proxy import PAGE, faulty_proxy
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.exceptions import MlflowException, RestException
from refusals import refusal
from servers import free_port
from sqlalchemy import create_engine

from analysis import pull_record, pull_runs
from tracking.connection import Server, TrackingError, tracking_state
from tracking.failures import failure_of
from tracking.store import is_unmade

AWAY = MlflowException("API request to http://x failed with exception refused")
TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
START_MS = 1_700_000_000_000


@pytest.fixture
def clock(monkeypatch):
    """Moves only when told, or when somebody sleeps."""

    class Clock:
        now_s = 0.0

        def __call__(self):
            return self.now_s

        def pass_s(self, seconds):
            self.now_s += seconds

    clock = Clock()
    monkeypatch.setattr("tracking.connection.time.sleep", clock.pass_s)
    return clock


def away():
    raise AWAY


def test_a_server_that_comes_back_in_time_is_answered_and_one_that_stays_away_given_up(clock):
    answers = iter([away, away, lambda: "here"])
    server = Server("http://x", 6.0, clock=clock)
    assert server.ask(lambda: next(answers)()) == "here"
    began_s = clock.now_s
    with pytest.raises(TrackingError) as caught:
        server.ask(away)
    assert caught.value.away
    assert 3.0 < clock.now_s - began_s < 6.0


def test_an_answer_makes_the_patience_whole_again_and_a_request_waits_for_what_is_left(clock):
    server = Server("http://x", 6.0, None, clock=clock)
    for _ in range(5):
        server.ask(clock.pass_s, 5.0)
    assert clock.now_s == 25.0
    waits = []

    def ask():
        waits.append(os.environ[TIMEOUT])
        raise AWAY

    with pytest.raises(TrackingError):
        server.ask(ask)
    assert waits[0] == "6"
    assert waits[-1] < "6"
    assert Server("http://x").ask(os.environ.get, TIMEOUT) == "60"


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv(TIMEOUT, "7")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    Server("http://x").ask(str)
    assert os.environ[TIMEOUT] == "7"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"


def test_what_the_server_refuses_is_not_asked_again(clock):
    for error in (RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}),
                  answered(401)):  # fmt: skip
        asked = []

        def ask(error=error, asked=asked):
            asked.append(1)
            raise error

        with pytest.raises(TrackingError) as caught:
            Server("http://x", 6.0, clock=clock).ask(ask)
        assert len(asked) == 1
        assert caught.value.denied == (error is not None and "401" in str(error))
    assert failure_of(ValueError("ours")) is None
    with pytest.raises(ZeroDivisionError):  # our own fault is no server's
        Server("http://x").ask(lambda: 1 / 0)


def answered(status, said="said", text=""):
    response = requests.Response()
    response.status_code = status
    response._content = text.encode()
    return requests.HTTPError(f"{status} {said}", response=response)


@pytest.mark.parametrize(
    ("error", "away", "told"),
    [
        (AWAY, True, "connection refused"),
        (requests.ConnectionError("reset"), True, "connection broke"),
        (requests.ConnectionError("NameResolutionError"), True, "no host of that name"),
        (requests.ConnectionError("CERTIFICATE_VERIFY"), True, "MLFLOW_TRACKING_SERVER_CERT_PATH"),
        (answered(503), True, "fails (503)"),
        (answered(429), True, "429"),
        (answered(404), False, "404"),
        (answered(404, "url: http://x/artifacts?path=0", PAGE), False, "web page"),
        (answered(401), False, "MLFLOW_TRACKING_USERNAME"),
        (answered(403), False, "right to write"),
        (RestException({"error_code": "BAD_REQUEST", "message": "QueuePool limit"}), True, "Queue"),
        (RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "m"}), False, "m"),
        (RestException({"error_code": "TEMPORARILY_UNAVAILABLE", "message": "m"}), True, "m"),
        (ConnectionResetError(), True, "ConnectionResetError"),
        (OSError(28, "No space left on device"), False, "No space left"),
    ],
)
def test_failures_are_told_from_refusals(error, away, told):
    failure = failure_of(error)
    assert (failure.away and not failure.denied) is away
    assert told in failure.line


# What answers instead of it: another service, a page, a proxy on the way

JSON = '{"detail": "Not Found"}'


@pytest.mark.parametrize(
    ("way", "denied", "told"),
    [
        ((200, PAGE), True, "web page"),
        ((302, PAGE), True, "web page"),
        ((400, PAGE), True, "web page"),
        ((403, PAGE), True, "web page"),
        ((404, PAGE), True, "web page"),
        ((404, JSON), True, "another service"),
        ((405, "no"), True, "another service"),
        ((200, "[]"), True, "another service"),
        ((200, "{}"), True, "another service"),
        ((200, '{"experiments": 5}'), True, "another service"),
        ((200, '{"experiments": [{"tags": 1}]}'), True, "another service"),
        ((403, "Permission denied"), True, "right to write"),
        ((413, PAGE), False, "client_max_body_size"),
        ((429, PAGE), False, "429"),
        ((503, JSON), False, "fails"),
    ],
)
def test_what_is_not_mlflow_is_named_and_only_what_passes_is_asked_again(way, denied, told):
    with faulty_proxy("http://127.0.0.1:1") as (proxy, uri):
        proxy.fail(1, way, times=1000)
        with pytest.raises(TrackingError) as caught:
            _ = Server(uri, patience_s=0).experiments
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.denied == denied
    assert caught.value.away == (denied or way[0] in (429, 503))


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("status", [None, 403, 407, 502])
def test_a_proxy_that_is_gone_or_forbids_is_named(monkeypatch, name, status):
    with faulty_proxy("http://127.0.0.1:1") as (proxy, uri):
        proxy.fail(1, (status, PAGE), times=1000)
        there = f"127.0.0.1:{free_port()}" if status is None else uri.removeprefix("http://")
        monkeypatch.setenv(name, f"http://me:secret@{there}")
        server = Server("http://tracking.example", patience_s=0)
        with pytest.raises(TrackingError) as caught:
            _ = server.experiments
        assert caught.value.denied == (status in (403, 407))
        assert f"{name.upper()}, http://{there}, " in str(caught.value)
        assert "NO_PROXY=tracking.example" in str(caught.value)
        assert "credentials" not in str(caught.value)
        monkeypatch.setenv("NO_PROXY", "tracking.example,127.0.0.1")
        asked = len(proxy.requests)
        with pytest.raises(TrackingError, match="no host of that name"):
            _ = server.experiments
        assert len(proxy.requests) == asked


# Its address, and what a command says of it


@pytest.mark.parametrize("uri", [None, "sqlite:///new.db", "sqlite:///{}/new.db"])
def test_asking_makes_no_store(monkeypatch, tmp_path, uri):
    folder = tmp_path / "a folder, 100%"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    if uri is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(folder))
    assert "will be made" in tracking_state()
    for read in (pull_runs, partial(pull_record, "a" * 32)):
        assert ".db, so no runs are tracked there: go to the folder" in refusal(read)
    assert list(tmp_path.rglob("*")) == [folder]
    opened = Path(create_engine(mlflow.get_tracking_uri()).url.database)
    opened.parent.mkdir(exist_ok=True)
    opened.touch()
    assert not is_unmade(mlflow.get_tracking_uri())


def test_a_server_that_is_gone_has_a_remedy(monkeypatch):
    monkeypatch.setattr("tracking.connection.time.sleep", lambda _: None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://u:secret@127.0.0.1:{free_port()}")
    problem = tracking_state()
    assert "MLFLOW_TRACKING_URI" in problem.remedy
    assert "secret" not in problem.what


def test_variables_that_name_two_experiments_are_refused(embedded, monkeypatch):
    server = Server()
    ids = {name: server.experiment_named(name) for name in ("mine", "yours")}
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", ids["mine"])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert server.experiment_id() == ids["mine"]
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "yours")
    with pytest.raises(TrackingError, match="two experiments"):
        server.experiment_id()


# All runs over many pages: none lost, none twice, whatever happens between two pages


class Runs:
    """Runs that began so many milliseconds after a time."""

    def __init__(self, store, began_ms, *, by_sql):
        self.server = Server(f"sqlite:///{store}")
        if not by_sql:
            self.server._reader = None  # as of a server
        self.began = {}
        for each in began_ms:
            self.add(each)

    def add(self, began_ms):
        run = self.server.client.create_run("0", start_time=START_MS + began_ms)
        self.began[run.info.run_id] = began_ms
        return run.info.run_id

    def in_order(self):
        return sorted(self.began, key=lambda run_id: (-self.began[run_id], run_id))

    def pages(self, page_size, wanted=""):
        with pytest.MonkeyPatch.context() as small:
            small.setattr("tracking.connection._PAGE", page_size)
            yield from (run.info.run_id for run in self.server.search(wanted, ["0"]))


@settings(max_examples=12)
@given(st.lists(st.integers(0, 3), max_size=8), st.booleans())
def test_runs_that_began_together_are_neither_lost_nor_doubled(
    embedded, tmp_path, tmp_path_factory, began_ms, by_sql
):
    store = shutil.copy(tmp_path / "mlflow.db", tmp_path_factory.mktemp("pages"))
    runs = Runs(store, began_ms, by_sql=by_sql)
    for page_size in (1, 2, 3, 8, 9):
        assert list(runs.pages(page_size)) == runs.in_order()
