"""From records and tracked runs to points, pictures and a report; needs no torch.

For a script or a notebook:

- tables of tracked runs: `pull_runs`, `pull_points` (those with a place under their roof),
  `pull_iterations`; whole records: `pull_records`, `pull_record`;
- answers: `plot_roofline`, `compare`, `predict`, `find_all`;
- in steps of one's own: `place`, `group_runs`, `draw_roofline` and the rest.

What is drawn and compared is imported when it is first used, since Matplotlib and SciPy take a
second; more pictures are in `analysis.figures`, the report in `analysis.report`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from analysis.runs.groups import Group, batch_curves, group_runs
from analysis.runs.placed import PlacedRun, place, place_runs, recorded
from analysis.runs.placed_profiles import PlacedProfile, place_profiles
from analysis.runs.points import RooflinePoint
from analysis.runs.run import Run
from analysis.runs.tracked.iterations import pull_iterations, pull_record
from analysis.runs.tracked.pull import pull_points, pull_records, pull_runs
from analysis.runs.tracked.record_set import RecordSet

if TYPE_CHECKING:
    from analysis.comparison import compare, compare_pairs, compared_metric, pair_runs
    from analysis.figures import draw_roofline, plot_roofline, save_figure, single_axes
    from analysis.findings import find_all
    from analysis.prediction import predict

__all__ = [
    "Group",
    "PlacedProfile",
    "PlacedRun",
    "RecordSet",
    "RooflinePoint",
    "Run",
    "batch_curves",
    "compare",
    "compare_pairs",
    "compared_metric",
    "draw_roofline",
    "find_all",
    "group_runs",
    "pair_runs",
    "place",
    "place_profiles",
    "place_runs",
    "plot_roofline",
    "predict",
    "pull_iterations",
    "pull_points",
    "pull_record",
    "pull_records",
    "pull_runs",
    "recorded",
    "save_figure",
    "single_axes",
]
_LAZY = {
    **dict.fromkeys(
        ("compare", "compare_pairs", "compared_metric", "pair_runs"), "analysis.comparison"
    ),
    **dict.fromkeys(
        ("draw_roofline", "plot_roofline", "save_figure", "single_axes"), "analysis.figures"
    ),
    "find_all": "analysis.findings",
    "predict": "analysis.prediction",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
