"""Tracked runs as a table, by MLflow's own search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tracking.schema import PROFILES_FILTER, runs_filter

if TYPE_CHECKING:
    import pandas as pd

    from bench.records.folders import MeasuredRecord


def pull_runs(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    campaign: str | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
) -> pd.DataFrame:
    """Return one row per tracked or imported measurement that matches, the newest first.

    `docs/analysis.md` lists the columns. Those of a profile are of the newest that explains the
    run, in whatever experiment. `filter_string` is MLflow's (`params.arch = 'resnet50' and
    metrics.attained_gflops > 100`); `experiments` are names, all by default; `tracking_uri` is
    MLflow's own default if not given. Of a large selection only what is new since the last pull is
    read, unless `refresh`; runs that were renamed or tagged by hand since show only then. An empty
    table has the same columns. Raises `UserError` for an unknown experiment and `TrackingError`
    for what the server refuses, a malformed filter too.
    """
    # Pandas and MLflow take a second to import, which the rest of the package does without.
    from analysis.runs.run_table import runs_table
    from tracking.reading.incremental import search_kept_runs

    runs = [
        run
        for kind in ("measurement", "imported")
        for run in search_kept_runs(
            runs_filter(filter_string, campaign, kind=kind),
            experiments=experiments,
            tracking_uri=tracking_uri,
            refresh=refresh,
        )
    ]
    runs.sort(key=lambda run: run.start_time, reverse=True)
    profiles = (
        search_kept_runs(PROFILES_FILTER, tracking_uri=tracking_uri, refresh=refresh)
        if runs
        else []
    )
    return runs_table(runs, profiles)


def pull_record(run_id: str, tracking_uri: str | None = None) -> MeasuredRecord:
    """Return the whole record of a tracked run, fetched once and then from this user's cache.

    Raises `UserError` where the run holds none of this version, and `TrackingError`.
    """
    from tracking.reading.tracked_runs import download_record

    return download_record(run_id, tracking_uri)


def pull_iterations(run_ids: Iterable[str], tracking_uri: str | None = None) -> pd.DataFrame:
    """Return one row per measured iteration of each run, in the order given.

    Columns: `run_id`, `iteration` (from 0), `iteration_time_ms`, `data_wait_ms`. A run without a
    measurement, such as a failed one, has no rows. Raises as `pull_record`.
    """
    import pandas as pd

    from bench.records import RunRecord

    rows = []
    for run_id in run_ids:
        record = pull_record(run_id, tracking_uri)
        if isinstance(record, RunRecord) and record.measurement is not None:
            measured = record.measurement
            times = zip(measured.iteration_times_s, measured.data_wait_s, strict=True)
            rows += [
                (run_id, iteration, 1e3 * step_s, 1e3 * wait_s)
                for iteration, (step_s, wait_s) in enumerate(times)
            ]
    columns = {
        "run_id": "string",
        "iteration": "Int64",
        "iteration_time_ms": "float64",
        "data_wait_ms": "float64",
    }
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(columns)).astype(columns)
    return table
