"""A search that reads of a large selection only what is new or changed since the last one.

MLflow cannot tell what changed. But a run of ours is final once its record is uploaded and it has
ended, and says when that was (`schema.UPLOADED_AT`). So runs are kept on this disk, and the next
search asks for those uploaded since, with room for clocks that differ; for those without that tag;
for those that had not ended; and then whether the number of runs agrees. Where it does not, runs
were deleted, or something came that this could not see: the deleted ones are asked for, and if that
does not explain it, everything is read again.

What it cannot see is a final run that somebody renames or tags by hand, unless its selection
thereby gains or loses a run. `refresh` reads all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone

from mlflow.exceptions import MlflowException

from tracking import schema
from tracking.patience import AFTER_A_RUN_S, ON_ITS_OWN_S, Patience
from tracking.reading.kept_runs import KeptRuns, forget, kept_file, read_kept, write_kept
from tracking.reading.selection import Selection, chosen_experiments
from tracking.store import open_client, public_uri, tracking_call
from tracking.upload.tracked_run import TrackedRun

#: A smaller selection is read whole each time, which is as quick.
KEPT_FROM = 500
#: How far apart the clocks of those who upload may be before everything is read again.
_CLOCKS_DIFFER = timedelta(minutes=10)
#: A server at work gets new runs while it is asked.
_ATTEMPTS = 2


@tracking_call
def search_kept_runs(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
) -> list[TrackedRun]:
    """Return what `search_runs` returns, read anew only where it is new, changed, or `refresh`.

    Raises as `search_runs` does.
    """
    client, ask = open_client(tracking_uri), Patience(AFTER_A_RUN_S, ON_ITS_OWN_S)
    chosen = chosen_experiments(client, ask, experiments)
    selection = Selection(client, ask, chosen, filter_string)
    path = kept_file(public_uri(tracking_uri), experiments, filter_string)
    asked_at = schema.sortable(datetime.now(timezone.utc))
    kept = None if refresh else read_kept(path)
    runs = None
    if kept is not None and _is_same_store(kept, selection):
        runs = _brought_up_to_date(selection, kept)
    if runs is None:
        runs = {run.run_id: run for run in selection.runs()}
    if len(runs) < KEPT_FROM:
        forget(path)
    elif kept is None or runs != kept.runs:
        created = {one.experiment_id: one.creation_time for one in chosen}
        write_kept(path, KeptRuns(asked_at, created, runs))
    return sorted(runs.values(), key=lambda run: (-run.start_time.timestamp(), run.run_id))


def _is_same_store(kept: KeptRuns, selection: Selection) -> bool:
    """Whether no experiment was made anew under its old number, as in a store made anew."""
    return all(
        kept.experiments.get(one.experiment_id, one.creation_time) == one.creation_time
        for one in selection.experiments
    )


def _brought_up_to_date(selection: Selection, kept: KeptRuns) -> dict[str, TrackedRun] | None:
    """Return all runs of the selection; None where that takes reading them all."""
    runs = {run.run_id: run for run in kept.runs.values() if _is_final(run)}
    try:
        since = _since(kept, runs.values())
    except ValueError:  # somebody else's tag
        return None
    open_ids = [
        run_id
        for run_id, run in kept.runs.items()
        if run_id not in runs and schema.UPLOADED_AT in run.tags
    ]
    try:
        for _ in range(_ATTEMPTS):
            for found in (
                selection.uploaded_since(since),
                selection.runs(f"tags.`{schema.UPLOADED_AT}` IS NULL"),
                selection.of_ids(open_ids),
            ):
                runs |= {run.run_id: run for run in found}
            if selection.has(len(runs)):
                return runs
            for gone in selection.runs(deleted=True):
                runs.pop(gone.run_id, None)
            if selection.has(len(runs)):
                return runs
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":  # an older server knows less of filters
            raise
    return None


def _since(kept: KeptRuns, final: Iterable[TrackedRun]) -> datetime:
    """When the kept runs end; a clock that is ahead of this one's does not count."""
    newest = max((run.tags[schema.UPLOADED_AT] for run in final), default=kept.asked_at)
    last = min(newest, kept.asked_at)
    return datetime.fromisoformat(last.replace("Z", "+00:00")) - _CLOCKS_DIFFER


def _is_final(run: TrackedRun) -> bool:
    return schema.UPLOADED_AT in run.tags and run.status not in ("RUNNING", "SCHEDULED")
