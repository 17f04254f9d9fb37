"""Which run on a server holds a record, or is to hold it: found by tag, or made by `mlflow run`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from os.path import commonprefix
from pathlib import Path

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from tracking import schema
from tracking.reading.pages import all_experiments, all_runs
from tracking.retry import RetryPolicy, ask_once
from tracking.store import CREDENTIALS

_PAGE = 1000
_RECORDS_AT_ONCE = 100
#: Record ids begin with their day, as in 20261120T104500Z-1f2e3d4c.
_DAY_CHARACTERS = 8
_PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mark:
    """The tag that says what a run was made for, and the one that is set when it is all there."""

    tag: str
    whole: str


RECORD = Mark(schema.RECORD_ID, schema.UPLOADED)


def runs_with(client: MlflowClient, ask: RetryPolicy, tag: str, value: str) -> list[Run]:
    """Return the active runs of all experiments whose `tag` is `value`."""
    if not _can_be_asked_for(value):
        return []
    wanted = f"tags.`{tag}` = '{value}'"
    ids = [found.experiment_id for found in all_experiments(client, ask)]
    return list(ask(client.search_runs, ids, wanted, max_results=_PAGE))


def runs_of_records(
    client: MlflowClient, ask: RetryPolicy, record_ids: Iterable[str]
) -> dict[str, list[Run]]:
    """Return the active runs of these records by record id, in a search for each hundred of a day.

    MLflow's filter knows no list of tags, so what begins as they do is asked for.
    """
    wanted = set(filter(_can_be_asked_for, record_ids))
    experiments = [one.experiment_id for one in all_experiments(client, ask)]
    found: dict[str, list[Run]] = {}
    for _, day in groupby(sorted(wanted), lambda record_id: record_id[:_DAY_CHARACTERS]):
        of_day = list(day)
        for start in range(0, len(of_day), _RECORDS_AT_ONCE):
            begin = commonprefix(of_day[start : start + _RECORDS_AT_ONCE])  # noqa: RUF071
            selection = f"tags.`{schema.RECORD_ID}` LIKE '{begin}%'"
            for run in all_runs(client, ask, experiments, selection):
                if (record_id := run.data.tags[schema.RECORD_ID]) in wanted:
                    runs = found.setdefault(record_id, [])
                    if all(run.info.run_id != each.info.run_id for each in runs):
                        runs.append(run)
    return found


def _can_be_asked_for(value: str) -> bool:
    """Whether nothing in it would end the string of a filter."""
    return not set("'\"`\\") & set(value)


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


def project_run(
    client: MlflowClient, ask: RetryPolicy, run_id: str | None, record_id: str | None = None
) -> Run | None:
    """Return the run of that id if `mlflow run` of this project made it and nothing fills it yet.

    A run that holds, or is to hold, the record `record_id` counts as free. `MLFLOW_RUN_ID` may
    name a run of any other program too; that one is nobody's here.
    """
    run = run_by_id(client, ask, run_id) if run_id else None
    if run is None or run.info.lifecycle_stage != "active" or not of_this_project(run):
        return None
    tags = run.data.tags
    is_free = schema.KIND not in tags or tags.get(schema.RECORD_ID) == record_id is not None
    return run if is_free else None


def of_this_project(run: Run) -> bool:
    """Whether `mlflow run` made the run from this project's folder, or from where it was cloned.

    MLflow writes down the folder, `file://REPOSITORY#FOLDER` where it is under git, or the URI of
    the repository with `#FOLDER`, of which this folder is then a clone.
    """
    source = run.data.tags.get("mlflow.source.name", "")
    if run.data.tags.get("mlflow.source.type") != "PROJECT":
        return False
    base, _, below = CREDENTIALS.sub("", source).partition("#")
    above = (one for one in (_PROJECT, *_PROJECT.parents) if (one / ".git").exists())
    repository = next(above, None)
    if repository is not None and base == _cloned_from(repository):
        return repository / below == _PROJECT
    folder = Path(base.removeprefix("file://"))
    return folder.is_absolute() and (folder / below).resolve() == _PROJECT


def _cloned_from(repository: Path) -> str | None:
    from mlflow.utils.git_utils import get_git_repo_url

    url: str | None = get_git_repo_url(str(repository))
    return url
