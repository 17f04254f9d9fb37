"""From records and tracked runs to points, pictures and a report; needs no torch.

`from analysis import pull_runs` works in a notebook. Pictures are in `analysis.figures`, the report
in `analysis.report`: they take Matplotlib and Plotly along.
"""

from analysis.runs.groups import Group, batch_curves, group_runs
from analysis.runs.placed import PlacedRun, Run, place, place_runs, recorded
from analysis.runs.placed_profiles import PlacedProfile, place_profiles
from analysis.runs.points import RooflinePoint
from analysis.runs.pull import pull_iterations, pull_record, pull_runs
from analysis.runs.record_set import RecordSet, pull_records

__all__ = [
    "Group",
    "PlacedProfile",
    "PlacedRun",
    "RecordSet",
    "RooflinePoint",
    "Run",
    "batch_curves",
    "group_runs",
    "place",
    "place_profiles",
    "place_runs",
    "pull_iterations",
    "pull_record",
    "pull_records",
    "pull_runs",
    "recorded",
]
