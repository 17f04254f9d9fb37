"""Intervals that hold for repeats of windows of iterations; `docs/statistics.md` says why."""

from analysis.statistics.outlying import find_outliers
from analysis.statistics.ratios import Covers, RatioEstimate, estimate_ratio, mean_ratio
from analysis.statistics.repeats import (
    CORRECTIONS,
    RepeatEstimate,
    benjamini_hochberg,
    holm,
    repeats_of,
)

__all__ = [
    "CORRECTIONS",
    "Covers",
    "RatioEstimate",
    "RepeatEstimate",
    "benjamini_hochberg",
    "estimate_ratio",
    "find_outliers",
    "holm",
    "mean_ratio",
    "repeats_of",
]
