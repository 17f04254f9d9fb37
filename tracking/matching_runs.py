"""Which run on a server holds a record: looked for by tag, and one of several chosen by rule."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from tracking import schema
from tracking.reading.pages import all_experiments
from tracking.retry import RetryPolicy, ask_once

_PAGE = 1000


@dataclass(frozen=True)
class Mark:
    """The tag that says what a run was made for, and the one that is set when it is all there."""

    tag: str
    whole: str


RECORD = Mark(schema.RECORD_ID, schema.UPLOADED)
COPY = Mark(schema.COPIED_FROM, schema.COPIED)


def runs_with(client: MlflowClient, ask: RetryPolicy, tag: str, value: str) -> list[Run]:
    """Return the active runs of all experiments whose `tag` is `value`."""
    if set("'\"`\\") & set(value):  # would end the filter's string
        return []
    wanted = f"tags.`{tag}` = '{value}'"
    ids = [found.experiment_id for found in all_experiments(client, ask)]
    return list(ask(client.search_runs, ids, wanted, max_results=_PAGE))


def chosen_run(client: MlflowClient, ask: RetryPolicy, mark: Mark, value: str) -> Run | None:
    """Return the run of a record, or None; where two uploads made one each, delete the other.

    A whole one stays, else the one whose id sorts first: every process decides alike.
    """
    found = runs_with(client, ask, mark.tag, value)
    if not found:
        return None
    chosen = min(found, key=lambda run: (not is_whole(run, mark), run.info.run_id))
    for run in found:
        if run is not chosen and not is_whole(run, mark):
            ask(client.delete_run, run.info.run_id)
    return chosen


def run_by_id(client: MlflowClient, ask: RetryPolicy, run_id: str) -> Run | None:
    """Return the run of that id, a deleted one too; None where the server has none."""
    try:
        return ask(client.get_run, run_id)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def make_run(
    client: MlflowClient,
    ask: RetryPolicy,
    experiment_id: str,
    mark: Mark,
    tags: dict[str, str],
    *,
    name: str,
    start_ms: int,
) -> Run:
    """Make a run. Where the answer is lost, look by its `mark` first whether the server made it."""
    tried = False

    def attempt() -> Run:
        nonlocal tried
        if tried and (made := chosen_run(client, ask, mark, tags[mark.tag])) is not None:
            return made
        tried = True
        with ask_once():
            return client.create_run(experiment_id, start_time=start_ms, tags=tags, run_name=name)

    return ask(attempt)


def is_whole(run: Run, mark: Mark = RECORD) -> bool:
    """Whether the run holds all of what it was made for."""
    return run.data.tags.get(mark.whole) == "true"
