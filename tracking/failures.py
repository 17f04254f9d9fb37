"""What a server, its database or the way there did wrong: in one line, and whether it passes."""

from __future__ import annotations

import re
import sqlite3
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

import requests

from tracking.store import CREDENTIALS

#: What MLflow's server answers when its database fails, such as without a free connection; for
#: what a client got wrong it has other codes.
_DATABASE = "BAD_REQUEST"
#: What the text of a failed request says of its cause.
_SIGNS = {
    "ProxyError|Unable to connect to proxy": "it is not reached",
    "timed? ?out": "the server does not answer",
    "refused": "nothing answers there (connection refused)",
    "NameResolution|getaddrinfo": "there is no host of that name",
    "reset|Remote end closed|RemoteDisconnected|IncompleteRead": "the connection broke",
    "CERTIFICATE": "its TLS certificate is not trusted: set MLFLOW_TRACKING_SERVER_CERT_PATH",
}
#: What an HTTP status says, and the remedy.
_REFUSALS = {
    401: "the server refuses the credentials (401): set MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD",
    403: "these credentials may not do that (403): ask for the right to write",
    407: "a proxy asks for a login (407)",
    411: "a proxy takes no request without a length (411): have it take them",
    413: "a proxy takes no request of this size (413): raise its limit, client_max_body_size of "
    "nginx, MAX_UPLOAD of ours",
}
NOT_MLFLOW = "answers there, not MLflow: sign in, or check the address"
#: What MLflow says of `mlruns` without a database, its store of old.
_FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"
_OLD_MLRUNS = (
    "MLflow takes the old mlruns for its store, and refuses it: export "
    "MLFLOW_TRACKING_URI=sqlite:///mlflow.db; if the old runs are wanted, before that mlflow "
    "migrate-filestore --source . --target sqlite:///mlflow.db"
)


@dataclass(frozen=True)
class Failure:
    """What a server did wrong, in one line with the remedy where there is one.

    `away`: nothing can be had of it now; asked later it may do the same. `denied`: the credentials,
    the address or a proxy must be mended before that.
    """

    line: str
    away: bool
    denied: bool = False


def failure_of(error: BaseException, uri: str = "") -> Failure | None:
    """Return what the server at `uri`, its database or the way there did; None for our own fault.

    It is away where it is not reached or does not answer, and with 5xx, 408 or 429.
    """
    answer, text = _answer(error), str(error)
    by_http = _is_a(error, "MlflowException") or isinstance(error, requests.RequestException)
    if not by_http and isinstance(error, OSError):
        line = " ".join(text.split()) or type(error).__name__
        away = isinstance(error, ConnectionError | TimeoutError)
        return Failure(CREDENTIALS.sub("", line), away)
    ours = answer is None and not by_http and not isinstance(error, sqlite3.Error)
    if ours and not _is_a(error, "SQLAlchemyError", "sqlalchemy.exc"):
        return None
    if _FILE_STORE in text:
        return Failure(_OLD_MLRUNS, away=True, denied=True)
    status, strange = _status(error, answer), _is_strange(error, answer)
    from_database = getattr(error, "error_code", None) == _DATABASE and not strange
    away = (
        isinstance(error, sqlite3.OperationalError)
        or _is_a(error, "OperationalError", "sqlalchemy.exc")
        or (by_http and (from_database or status is None or status >= 500 or status in (408, 429)))
    )
    # what is too large, or has no length, is refused alone
    denied = status in (401, 403, 407) or (strange and not away and status not in (411, 413))
    is_page = answer is not None and answer.text.lstrip().startswith("<")
    if status in _REFUSALS and not (status == 403 and is_page):
        line = _REFUSALS[status]
    elif denied:
        line = f"{'a web page' if is_page else 'another service'} {NOT_MLFLOW} (status {status})"
    else:
        line = CREDENTIALS.sub("", _cause(error, status))
    if by_http and uri.startswith("http") and (answer is None or strange):
        line += _proxy_between(uri, status)
    return Failure(line, away or denied, denied)


def _cause(error: BaseException, status: int | None) -> str:
    text = str(error)
    if status is not None:
        own = getattr(error, "message", text)
        line = (own.strip().splitlines() or [type(error).__name__])[0]
        return line if status < 500 else f"the server fails ({status}): {line}"
    if repeated := re.search(r"too many (\d+) error responses", text):
        return f"the server fails ({repeated[1]})"
    meanings = (meaning for sign, meaning in _SIGNS.items() if re.search(sign, text))
    return next(meanings, (text.strip().splitlines() or ["the server cannot be reached"])[0])


def _proxy_between(uri: str, status: int | None) -> str:
    """Name the proxy on the way to `uri`, where it may be what failed."""
    proxies = requests.utils.get_environ_proxies(uri)
    proxy = requests.utils.select_proxy(uri, proxies)
    if not proxy or not (status in (None, 403, 407) or status >= 500):
        return ""
    scheme = urlsplit(uri).scheme
    name = f"{scheme if scheme in proxies else 'all'}_PROXY".upper()
    return (
        f"; the proxy of {name}, {CREDENTIALS.sub('', proxy)}, stands between: mend it, or set "
        f"NO_PROXY={urlsplit(uri).hostname}"
    )


def _answer(error: BaseException) -> requests.Response | None:
    """The HTTP answer that MLflow could not use, None where there was none or half of one.

    MLflow's errors keep neither the status nor the text of what another service says, and what
    reads an answer may raise anything: the answer is in the frame that read it.
    """
    if isinstance(error, OSError) and not isinstance(error, requests.exceptions.JSONDecodeError):
        return getattr(error, "response", None)
    answer, trace = None, error.__traceback__
    while trace is not None:
        held = [*trace.tb_frame.f_locals.values()]
        answer = next((value for value in held if isinstance(value, requests.Response)), answer)
        trace = trace.tb_next
    return answer


def _is_strange(error: BaseException, answer: requests.Response | None) -> bool:
    """Whether the answer is none of MLflow's; a file may be missing, a list of files may not."""
    is_file = isinstance(error, requests.HTTPError) and "artifacts?path=" not in str(error)
    if answer is None or (is_file and answer.status_code == 404):
        return False
    return re.search("error_code|Permission denied", answer.text) is None


def _status(error: BaseException, answer: requests.Response | None) -> int | None:
    """The HTTP status of an answer; None where there was none, or only ones worth a repeat.

    MLflow wraps what its HTTP library raised in an error of its own, without a code.
    """
    if answer is not None:
        return answer.status_code
    if code := re.search(r"(?:Tunnel connection failed:|error code) (\d{3})", str(error)):
        return int(code[1])
    if not _is_a(error, "MlflowException") or re.match(
        r"API request to http.* failed with (timeout )?exception ", str(error), re.DOTALL
    ):
        return None
    from mlflow.exceptions import ERROR_CODE_TO_HTTP_STATUS

    return int(ERROR_CODE_TO_HTTP_STATUS.get(getattr(error, "error_code", ""), 500))


def _is_a(error: BaseException, kind: str, module: str = "mlflow.exceptions") -> bool:
    """Whether it is of that class; nothing is imported for it, which takes seconds."""
    return isinstance(error, getattr(sys.modules.get(module), kind, ()))
