"""Intervals that hold for repeats of windows of iterations; `docs/statistics.md` says why."""

from analysis.statistics.ratios import Covers, RatioEstimate, estimate_ratio, mean_ratio
from analysis.statistics.repeats import (
    CORRECTIONS,
    RepeatEstimate,
    benjamini_hochberg,
    holm,
    repeats_of,
)
from analysis.statistics.window_statistics import (
    block_length,
    effective_count,
    estimate_window,
    find_outliers,
)

__all__ = [
    "CORRECTIONS",
    "Covers",
    "RatioEstimate",
    "RepeatEstimate",
    "benjamini_hochberg",
    "block_length",
    "effective_count",
    "estimate_ratio",
    "estimate_window",
    "find_outliers",
    "holm",
    "mean_ratio",
    "repeats_of",
]
