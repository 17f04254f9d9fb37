"""Asking a server that may be away: again while that helps, and never past the patience."""

import os

import pytest
import requests
from mlflow.exceptions import MlflowException, RestException
from stored_runs import filed

from tracking.retry import (
    RetryPolicy,
    ask_once,
    failure_line,
    http_settings,
    is_away,
    is_unauthenticated,
)
from tracking.store import TrackingError
from tracking.upload.delivery import Delivery

AWAY = MlflowException("API request to http://x failed with exception refused")
TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
REPEATS = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


class Clock:
    """Moves only when told, or when somebody sleeps."""

    def __init__(self, monkeypatch):
        self.now_s = 0.0
        monkeypatch.setattr("tracking.retry.time.sleep", self.pass_s)

    def __call__(self):
        return self.now_s

    def pass_s(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def away():
    raise AWAY


def test_a_server_that_comes_back_in_time_is_answered_and_one_that_stays_away_given_up(clock):
    answers = iter([away, away, lambda: "here"])
    assert RetryPolicy(6.0, clock=clock)(lambda: next(answers)()) == "here"
    began_s = clock.now_s
    with pytest.raises(MlflowException):
        RetryPolicy(6.0, clock=clock)(away)
    assert 3.0 < clock.now_s - began_s < 6.0


def test_an_answer_makes_the_patience_whole_again(clock):
    patience = RetryPolicy(6.0, clock=clock)
    for _ in range(5):
        patience(clock.pass_s, 5.0)
    assert clock.now_s == 25.0
    waits = []

    def ask():
        waits.append(os.environ[TIMEOUT])
        raise AWAY

    with pytest.raises(MlflowException):
        patience(ask)
    assert waits[0] == "6"
    assert waits[-1] < "6"


def test_what_the_server_refuses_is_not_asked_again(clock):
    def ask():
        clock.pass_s(1.0)
        raise RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "no"})

    with pytest.raises(RestException):
        RetryPolicy(6.0, clock=clock)(ask)
    assert clock.now_s == 1.0


def test_our_settings_leave_the_users_alone_and_go_with_the_block(monkeypatch):
    monkeypatch.setenv(REPEATS, "7")
    with http_settings(6.0):
        assert os.environ[TIMEOUT] == "6"
        assert os.environ[REPEATS] == "7"
        with http_settings(2.0):
            assert os.environ[TIMEOUT] == "2"
        assert os.environ[TIMEOUT] == "6"
        with ask_once():
            assert os.environ[REPEATS] == "0"
        assert os.environ[REPEATS] == "7"
    assert TIMEOUT not in os.environ
    assert os.environ[REPEATS] == "7"


def answered(status):
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"{status} said", response=response)


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (AWAY, True),
        (requests.ConnectionError("reset"), True),
        (answered(503), True),
        (answered(429), True),
        (answered(404), False),
        (answered(401), False),
        (RestException({"error_code": "BAD_REQUEST", "message": "QueuePool limit"}), True),
        (RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "m"}), False),
        (RestException({"error_code": "TEMPORARILY_UNAVAILABLE", "message": "m"}), True),
        (ConnectionResetError(), True),
        (OSError(28, "No space left on device"), False),
        (ValueError("ours"), False),
    ],
)
def test_failures_are_told_from_refusals(error, away):
    assert is_away(error) is away


def test_credentials_are_told_from_rights():
    assert [is_unauthenticated(answered(status)) for status in (401, 403, 404)] == [
        True,
        True,
        False,
    ]
    assert "MLFLOW_TRACKING_USERNAME" in failure_line(answered(401))
    assert "right to write" in failure_line(answered(403))


def test_blocks_that_overlap_in_threads_leave_what_the_user_had(monkeypatch):
    monkeypatch.setenv(REPEATS, "7")
    one, other = http_settings(6.0), http_settings(9.0)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert os.environ[TIMEOUT] == "9"
    other.__exit__(None, None, None)
    assert TIMEOUT not in os.environ
    assert os.environ[REPEATS] == "7"
    with http_settings(5.0):
        assert os.environ[TIMEOUT] == "5"


# A sweep's records on their way: one that is refused does not hold up the others


@pytest.fixture
def sent(monkeypatch):
    """What reached the server; `refuse` and `away` name what it does to which record."""

    class Server:
        def __init__(self):
            self.held, self.refused, self.away = [], set(), False

        def upload(self, folder, record, place=None):
            if self.away:
                raise TrackingError("http://x: nothing answers there")
            if folder.record_id in self.refused:
                raise TrackingError("http://x: no", away=False)
            self.held.append(folder.record_id)

    server = Server()
    monkeypatch.setattr("tracking.upload.delivery.upload", server.upload)
    return server


def test_a_record_that_the_server_refuses_holds_up_no_other_and_is_named(sent, tmp_path):
    delivery = Delivery("none")
    first, second = filed(tmp_path), filed(tmp_path)
    sent.refused = {first[0].record_id}
    delivery.deliver(*first)
    delivery.deliver(*second)
    assert sent.held == [second[0].record_id]
    assert delivery.problem == "http://x: no"


def test_a_record_that_cannot_be_read_holds_up_no_other(sent, tmp_path):
    delivery = Delivery("none")
    damaged, sound = filed(tmp_path), filed(tmp_path)
    damaged[0].record.write_text("{", encoding="utf-8")
    delivery.deliver(*damaged)
    delivery.deliver(*sound)
    assert sent.held == [sound[0].record_id]
    assert damaged[0].record_id in delivery.problem


def test_a_server_that_is_away_is_left_alone_for_a_while_and_gets_all_of_it_later(sent, tmp_path):
    now_s = [0.0]
    delivery = Delivery("none", clock=lambda: now_s[0])
    kept = [filed(tmp_path) for _ in range(3)]
    sent.away = True
    delivery.deliver(*kept[0])
    sent.away = False
    delivery.deliver(*kept[1])
    assert sent.held == []
    assert delivery.problem is not None
    now_s[0] = 61.0
    delivery.deliver(*kept[2])
    assert sent.held == [folder.record_id for folder, _ in kept]
    assert delivery.problem is None
