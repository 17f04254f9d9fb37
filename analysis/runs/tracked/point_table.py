"""The rows of a pulled table that have a place under a roof, with the numbers of that place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.runs.points import RooflinePoint
from analysis.runs.tracked.run_table import runs_table

if TYPE_CHECKING:
    from analysis.runs.run import Run
    from tracking.reading.run_columns import RunColumns, TrackedRun

#: Of the iteration as it was placed: with several batches an iteration, each moves fewer bytes than
#: one alone, and of the profiles of a run only one that passes every check counts.
_OF_ITERATION: Mapping[str, Callable[[RooflinePoint], float | None]] = {
    "intensity_min": lambda point: point.intensity_min,
    "intensity_max": lambda point: point.intensity_max,
    "intensity_counted": lambda point: point.intensity_counted,
    "traffic_amplification": lambda point: point.traffic_amplification,
    "attained_gflops": lambda point: point.attained_flops_per_s / 1e9,
}


def points_table(
    runs: RunColumns,
    profiles: Sequence[TrackedRun],
    places: Mapping[str, Run | str],
) -> pd.DataFrame:
    """Return one row per run that has a place, in the order given, as `runs_table` has it."""
    points = {
        run_id: place.point
        for run_id, place in places.items()
        if not isinstance(place, str) and place.point is not None
    }
    placed = runs.only(runs.of_ids(points))
    table = runs_table(placed, profiles, places)
    for column, value in _OF_ITERATION.items():
        found = [value(points[run_id]) for run_id in placed.run_ids]
        table[column] = pd.Series(found, dtype="float64")
    # two machines of one label have a number each
    table["env"] = pd.Series([points[run_id].env for run_id in placed.run_ids], dtype="string")
    del table["not_placed"]
    return table
