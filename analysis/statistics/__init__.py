"""Intervals that hold for repeats of windows of iterations; `docs/statistics.md` says why."""

from analysis.statistics.outliers import find_outliers
from analysis.statistics.ratios import RatioEstimate, Scope, estimate_ratio, mean_ratio
from analysis.statistics.repeats import CORRECTIONS, Interval, Repeats, repeats_of

__all__ = [
    "CORRECTIONS",
    "Interval",
    "RatioEstimate",
    "Repeats",
    "Scope",
    "estimate_ratio",
    "find_outliers",
    "mean_ratio",
    "repeats_of",
]
