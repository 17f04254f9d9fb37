"""From records and tracked runs to points, pictures and a report; needs no torch.

For a script or a notebook:

- tables of tracked runs: `pull_runs`, `pull_points` (those with a place under their roof),
  `pull_iterations`; whole records: `pull_records`, `pull_record`;
- answers: `plot_roofline`, `step_account`, `compare`, `predict`, `find_all`;
- in steps of one's own: `place`, `group_runs`, `draw_roofline` and the rest.

Each is imported when it is first used, since Matplotlib and SciPy take a second; more pictures are
in `analysis.figures`, the report in `analysis.report`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.comparison import compare, compare_pairs, compared_metric, pair_runs
    from analysis.figures import draw_roofline, plot_roofline, save_figure, single_axes
    from analysis.findings import find_all
    from analysis.prediction.batch_size import predict
    from analysis.runs.groups import group_runs
    from analysis.runs.place import place, place_runs
    from analysis.runs.run import recorded, step_account
    from analysis.server.pull import (
        RecordSet,
        pull_iterations,
        pull_points,
        pull_record,
        pull_records,
        pull_runs,
    )

_LATER = {
    "analysis.comparison": ("compare", "compare_pairs", "compared_metric", "pair_runs"),
    "analysis.figures": ("draw_roofline", "plot_roofline", "save_figure", "single_axes"),
    "analysis.findings": ("find_all",),
    "analysis.prediction.batch_size": ("predict",),
    "analysis.runs.groups": ("group_runs",),
    "analysis.runs.place": ("place", "place_runs"),
    "analysis.runs.run": ("recorded", "step_account"),
    "analysis.server.pull": (
        "RecordSet", "pull_iterations", "pull_points", "pull_record", "pull_records", "pull_runs",
    ),
}  # fmt: skip
__all__ = [name for names in _LATER.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
