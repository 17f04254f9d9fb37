"""Intervals that hold for repeats of windows of iterations; `docs/statistics.md` says why."""

from analysis.statistics.ratios import RatioEstimate, Scope, estimate_ratio, mean_ratio
from analysis.statistics.repeats import CORRECTIONS, Interval, Repeats, repeats_of
from analysis.statistics.series import find_outliers

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
