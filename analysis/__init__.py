"""From records and tracked runs to points, pictures and a report; needs no torch.

`from analysis import pull_runs` works in a notebook. Pictures are in `analysis.figures`, the report
in `analysis.report`: they take Matplotlib and Plotly along.
"""

from analysis.profiles.profile_results import ProfileResult, profile_results
from analysis.runs.gather import Gathered, gather_records, split_records
from analysis.runs.points import Refusal, RooflinePoint, roofline_point, roofline_points
from analysis.runs.pull import pull_iterations, pull_record, pull_runs
from analysis.runs.results import RunResult, run_results

__all__ = [
    "Gathered",
    "ProfileResult",
    "Refusal",
    "RooflinePoint",
    "RunResult",
    "gather_records",
    "profile_results",
    "pull_iterations",
    "pull_record",
    "pull_runs",
    "roofline_point",
    "roofline_points",
    "run_results",
    "split_records",
]
