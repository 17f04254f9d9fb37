"""How long a server may leave us without an answer.

MLflow asks again by itself, for four minutes by default, and also where asking twice makes two
runs. So its own repeats are off, unless the user has set them, and whoever asks knows what may be
asked again.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from bench.records.journal import Clock
from tracking.failures import is_away

P = ParamSpec("P")
T = TypeVar("T")

#: After a measurement somebody waits for the prompt: MLflow's import and this stay below 10 s.
AFTER_A_RUN_S = 5.0
#: How long a request of a command that does nothing else may wait for a server at work.
ON_ITS_OWN_S = 60.0

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0
_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
_REPEATS = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
#: MLflow reads them at each request. A bar per file and a link per run would bury what a command
#: says, and the link costs a request.
_SETTINGS = {
    _REPEATS: "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

#: A first contact with an SQLite file prints a line per schema migration.
for _noisy in ("mlflow.store.db.utils", "alembic", "alembic.runtime.migration"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)

#: The settings that blocks hold now, in several threads perhaps, and what the user had there.
_holds: list[dict[str, str]] = []
_users: dict[str, str | None] = {}
_changing = threading.Lock()


@contextmanager
def http_settings(answer_s: float = ON_ITS_OWN_S) -> Iterator[None]:
    """Hold MLflow's HTTP settings for a block: `answer_s` to wait, and no repeats of its own.

    Whatever the user has set stays.
    """
    wanted = {**_SETTINGS, _TIMEOUT: str(max(1, math.ceil(answer_s)))}
    with _changing:
        ours = {name: text for name, text in wanted.items() if _users_own(name) is None}
    with _environment(ours):
        yield


@contextmanager
def no_repeats() -> Iterator[None]:
    """Let MLflow ask once for what asked twice would be made twice, whatever the user has set."""
    with _environment({_REPEATS: "0"}):
        yield


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Hold `values`; what another thread holds meanwhile, or the user had, comes back after."""
    with _changing:
        for name in values:
            _users[name] = _users_own(name)
        _holds.append(values)
        os.environ.update(values)
    try:
        yield
    finally:
        with _changing:
            _holds[:] = [held for held in _holds if held is not values]
            for name in values:
                _give_back(name)


def _users_own(name: str) -> str | None:
    return _users[name] if name in _users else os.environ.get(name)


def _give_back(name: str) -> None:
    others = [held[name] for held in _holds if name in held]
    text = others[-1] if others else _users.pop(name)
    if text is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = text


class Patience:
    """Asks a server, and asks again while it is away, until it has been away for `limit_s`.

    An answer makes the patience whole again, so a slow server that gets on is never cut off.
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
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            self._answered_s = self._clock()
            return answer
