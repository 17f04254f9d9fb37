"""Everything on a server that matches, over all pages."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

from mlflow.entities import Experiment, Run, ViewType
from mlflow.tracking import MlflowClient

from tracking.retry import RetryPolicy

_PAGE = 1000


def all_experiments(client: MlflowClient, ask: RetryPolicy) -> list[Experiment]:
    """Return every active experiment."""
    found: list[Experiment] = []
    token: str | None = None
    while True:
        page = ask(client.search_experiments, max_results=_PAGE, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def all_runs(
    client: MlflowClient,
    ask: RetryPolicy,
    experiment_ids: list[str],
    filter_string: str,
    *,
    page_size: int = _PAGE,
    view: int = ViewType.ACTIVE_ONLY,
) -> Iterator[Run]:
    """Yield every run of the experiments that matches, once, newest start first.

    A page begins at the start time where the one before ended. MLflow's own tokens count runs from
    the newest: for each page the server sorts those before it again, and where one of them was
    deleted since, the page leaves out another. They serve where more runs than a page holds
    began in one millisecond.
    """
    wanted = filter_string
    edge_ms: int | None = None
    at_edge: set[str] = set()
    token: str | None = None
    while True:
        with paused_collector():
            page = ask(
                client.search_runs,
                experiment_ids,
                wanted,
                run_view_type=view,
                max_results=page_size,
                page_token=token,
            )
        yield from (run for run in page if run.info.run_id not in at_edge)
        if not page.token:
            return
        last_ms = page[-1].info.start_time if page else edge_ms
        if last_ms == edge_ms:
            token = page.token
        else:
            edge_ms, token, at_edge = last_ms, None, set()
            wanted = matching(filter_string, f"attributes.start_time <= {edge_ms}")
        at_edge |= {run.info.run_id for run in page if run.info.start_time == edge_ms}


def matching(*filters: str) -> str:
    """Return the filter of what matches all of these, of which some may be empty."""
    return " and ".join(part for one in filters if (part := one.strip()))


_pauses = threading.Lock()
_paused = 0
_was_enabled = False


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Keep Python's collector of cycles from running, in this process.

    MLflow makes over a hundred objects of a run, and a record has as many. Going through them again
    and again takes more than half of the time of a large page, and finds nothing: they have no
    cycles.
    """
    global _paused, _was_enabled
    with _pauses:
        if _paused == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused += 1
    try:
        yield
    finally:
        with _pauses:
            _paused -= 1
            if _paused == 0 and _was_enabled:
                gc.enable()
