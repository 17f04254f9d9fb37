"""Intervals that hold for repeats of windows of iterations; `docs/statistics.md` says why."""

from analysis.statistics.multiple import CORRECTIONS, benjamini_hochberg, holm
from analysis.statistics.ratio import RatioEstimate, estimate_ratio
from analysis.statistics.repeats import RepeatEstimate, Repeats, repeats_of
from analysis.statistics.series import Outliers, block_length, effective_count, find_outliers
from analysis.statistics.window_estimate import WindowEstimate, estimate_window

__all__ = [
    "CORRECTIONS",
    "Outliers",
    "RatioEstimate",
    "RepeatEstimate",
    "Repeats",
    "WindowEstimate",
    "benjamini_hochberg",
    "block_length",
    "effective_count",
    "estimate_ratio",
    "estimate_window",
    "find_outliers",
    "holm",
    "repeats_of",
]
