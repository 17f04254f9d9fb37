"""One tracked run's whole record, and the iterations of several as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.records import RunRecord
from bench.records.verdict.record_metrics import PHASES

if TYPE_CHECKING:
    import pandas as pd

    from bench.records.folders import WholeRecord


def pull_record(run_id: str, tracking_uri: str | None = None) -> WholeRecord:
    """Return the whole record of a tracked run, fetched once and then from this user's cache.

    Raises `UserError` where the run holds none of this version or there is no store, and
    `TrackingError`.
    """
    from tracking.reading.tracked_runs import download_record

    return download_record(run_id, tracking_uri)


def pull_iterations(run_ids: Iterable[str], tracking_uri: str | None = None) -> pd.DataFrame:
    """Return one row per measured iteration of each run, in the order given.

    Columns: `run_id`, `iteration` (from 0), `iteration_time_ms`, `data_wait_ms`, and the times of
    the phases, `forward_time_ms` and so on, missing where they were not timed. A run without a
    measurement, such as a failed or an imported one, has no rows. Raises as `pull_record`.
    """
    import pandas as pd

    from tracking.reading.tracked_runs import download_any

    rows = []
    for run_id in run_ids:
        record = download_any(run_id, tracking_uri)
        if isinstance(record, RunRecord) and record.measurement is not None:
            measured = record.measurement
            phases = measured.phase_times_s or {}
            timed = [phases.get(name, [math.nan] * len(measured.data_wait_s)) for name in PHASES]
            times = zip(measured.iteration_times_s, measured.data_wait_s, *timed, strict=True)
            rows += [
                (run_id, iteration, *(1e3 * time_s for time_s in times_s))
                for iteration, times_s in enumerate(times)
            ]
    columns = {
        "run_id": "string",
        "iteration": "Int64",
        "iteration_time_ms": "float64",
        "data_wait_ms": "float64",
        **{f"{phase}_time_ms": "float64" for phase in PHASES},
    }
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(columns)).astype(columns)
    return table
