"""What the failure of a request means: whether to ask again, and what to tell a person."""

from __future__ import annotations

import re

import requests
from mlflow.exceptions import ERROR_CODE_TO_HTTP_STATUS, MlflowException
from sqlalchemy.exc import OperationalError

#: What MLflow's server answers when its database fails it, such as for want of a connection; for
#: what a client got wrong it has other codes.
_DATABASE = "BAD_REQUEST"


def is_away(error: BaseException) -> bool:
    """Whether the server may do the same later: not reached, not answering, 5xx, 408 or 429."""
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        return isinstance(error, (ConnectionError, TimeoutError))
    if isinstance(error, OperationalError):
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


def said(error: BaseException) -> str:
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
