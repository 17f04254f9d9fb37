"""Tracked runs as a table, by MLflow's own search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.filters import PROFILES_FILTER, measurement_filter

if TYPE_CHECKING:
    import pandas as pd


def pull_runs(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    campaign: str | None = None,
    tracking_uri: str | None = None,
) -> pd.DataFrame:
    """Return one row per tracked measurement that matches; `docs/analysis.md` lists the columns.

    Columns of a profile are those of the newest that explains the run, in whatever experiment.
    `filter_string` is MLflow's (`params.arch = 'resnet50' and metrics.attained_gflops > 100`);
    `experiments` are names, all by default; `tracking_uri` is MLflow's own default if not given.
    An empty table has the same columns. Raises `UserError` for an unknown experiment
    and `TrackingError` for what the server refuses, a malformed filter too.
    """
    # Pandas and MLflow take a second to import, which the rest of the package does without.
    from analysis.columns import runs_table
    from tracking.search import search_runs

    query = measurement_filter(filter_string, campaign)
    runs = search_runs(query, experiments=experiments, tracking_uri=tracking_uri)
    profiles = search_runs(PROFILES_FILTER, tracking_uri=tracking_uri) if runs else []
    return runs_table(runs, profiles)
