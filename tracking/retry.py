"""How long a server may leave us without an answer, and what the failure of a request means.

MLflow asks again by itself, for four minutes by default, and also where asking twice makes two
runs. So its own repeats are off, unless the user has set them, and the caller knows what may be
asked again.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import requests
from mlflow.exceptions import ERROR_CODE_TO_HTTP_STATUS, MlflowException

from bench.records.journal import Clock

#: What MLflow's server answers when its database fails, such as without a free connection; for
#: what a client got wrong it has other codes.
_DATABASE = "BAD_REQUEST"

P = ParamSpec("P")
T = TypeVar("T")
#: After a measurement somebody waits for the prompt: MLflow's import and this stay below 10 s.
AWAY_LIMIT_S = 5.0
#: How long a request of a command that does nothing else may wait for a server at work.
ANSWER_LIMIT_S = 60.0
_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 2.0
_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
_MAX_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
#: MLflow reads them at each request. A bar per file and a link per run would bury what a command
#: says, and the link costs a request.
_SETTINGS = {
    _MAX_RETRIES: "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
#: A first contact with an SQLite file prints a line per schema migration, a damaged one tracebacks.
for _noisy in ("mlflow.store.db.utils", "alembic", "alembic.runtime.migration"):
    logging.getLogger(_noisy).setLevel(logging.CRITICAL)
#: The settings that blocks hold now, in several threads perhaps, and what the user had there.
_holds: list[dict[str, str]] = []
_user_values: dict[str, str | None] = {}
_changing = threading.Lock()


def is_away(error: BaseException) -> bool:
    """Whether the server may do the same later: not reached, not answering, 5xx, 408 or 429."""
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        return isinstance(error, (ConnectionError, TimeoutError))
    sqlalchemy = sys.modules.get("sqlalchemy.exc")  # imported by embedded stores alone
    if sqlalchemy is not None and isinstance(error, sqlalchemy.OperationalError):
        return True
    if not isinstance(error, (MlflowException, requests.RequestException)):
        return False
    if isinstance(error, MlflowException) and error.error_code == _DATABASE:
        return True
    status = _status(error)
    return status is None or status >= 500 or status in (408, 429)


def is_unauthenticated(error: BaseException) -> bool:
    """Whether the server refuses the credentials, or what they may do."""
    return _status(error) in (401, 403)


def failure_line(error: BaseException) -> str:
    """Return what happened in one line, with the remedy where there is one."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        return " ".join(text.split()) or type(error).__name__
    status = _status(error)
    if status == 401:
        return (
            "the server refuses the credentials (401): set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD"
        )
    if status == 403:
        return "these credentials may not do that (403): ask for the right to write"
    if status is None:
        return _why_not_reached(text)
    own = error.message if isinstance(error, MlflowException) else text
    line = (own.strip().splitlines() or [type(error).__name__])[0]
    return line if status < 500 else f"the server fails ({status}): {line}"


def _why_not_reached(text: str) -> str:
    if found := re.search(r"too many (\d+) error responses", text):
        return f"the server fails ({found[1]})"
    if re.search(r"timed? ?out", text, re.IGNORECASE):
        return "the server does not answer"
    for sign, meaning in {
        "refused": "nothing answers there (connection refused)",
        "NameResolution": "there is no host of that name",
        "getaddrinfo": "there is no host of that name",
        "reset": "the connection broke (reset)",
        "Remote end closed": "the connection broke (closed without an answer)",
        "RemoteDisconnected": "the connection broke (closed without an answer)",
        "IncompleteRead": "the connection broke (half an answer)",
        "CERTIFICATE": "its TLS certificate is not trusted: set MLFLOW_TRACKING_SERVER_CERT_PATH",
    }.items():
        if sign in text:
            return meaning
    return (text.strip().splitlines() or ["the server cannot be reached"])[0]


def _status(error: BaseException) -> int | None:
    """The HTTP status of an answer; None where there was none, or only ones worth a repeat."""
    if isinstance(error, requests.RequestException):
        return None if error.response is None else error.response.status_code
    if not isinstance(error, MlflowException) or _never_answered(error):
        return None
    if found := re.search(r"failed with error code (\d{3}) ", error.message):
        return int(found[1])
    return int(ERROR_CODE_TO_HTTP_STATUS.get(error.error_code, 500))


def _never_answered(error: MlflowException) -> bool:
    """MLflow wraps what its HTTP library raised in an error of its own, without a code."""
    return error.message.startswith("API request to http") and (
        " failed with exception " in error.message
        or " failed with timeout exception " in error.message
    )


@contextmanager
def http_settings(answer_s: float = ANSWER_LIMIT_S) -> Iterator[None]:
    """Hold MLflow's HTTP settings for a block: `answer_s` to wait, and no repeats of its own.

    Whatever the user has set stays.
    """
    wanted = {**_SETTINGS, _TIMEOUT: str(max(1, math.ceil(answer_s)))}
    with _changing:
        # One by one: MLflow's own threads change the environment while it is copied.
        ours = {
            name: text
            for name, text in wanted.items()
            if _user_values.get(name, os.environ.get(name)) is None
        }
    with _environment(ours):
        yield


@contextmanager
def ask_once() -> Iterator[None]:
    """Let MLflow ask once for what asked twice would be made twice, whatever the user has set."""
    with _environment({_MAX_RETRIES: "0"}):
        yield


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Hold `values`; what another thread holds at the time, or the user had, comes back after."""
    with _changing:
        for name in values:
            _user_values.setdefault(name, os.environ.get(name))
        _holds.append(values)
        _apply_holds()
    try:
        yield
    finally:
        with _changing:
            _holds[:] = [held for held in _holds if held is not values]
            _apply_holds()


def _apply_holds() -> None:
    for name in list(_user_values):
        held = [values[name] for values in _holds if name in values]
        text = held[-1] if held else _user_values.pop(name)
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


class RetryPolicy:
    """Asks a server, and asks again while it is away, until it has been away for `limit_s`.

    An answer starts `limit_s` again, so a slow server that gets on is never cut off.
    One request may wait for `answer_s`, by default for what is left of `limit_s`. Only for
    requests that may be repeated.
    """

    def __init__(
        self,
        limit_s: float,
        answer_s: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limit_s = limit_s
        self._answer_s = answer_s
        self._clock = clock
        self._answered_s = clock()

    def __call__(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer of `ask`; raises what it raised last."""
        pause_s = _FIRST_PAUSE_S
        while True:
            left_s = self.limit_s - (self._clock() - self._answered_s)
            try:
                with http_settings(self._answer_s or left_s):
                    answer = ask(*args, **kwargs)
            except Exception as error:
                if not is_away(error):
                    raise
                if self._clock() - self._answered_s + pause_s >= self.limit_s:
                    raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                continue
            self._answered_s = self._clock()
            return answer
