"""Intervals that hold for repeats of windows of iterations; `docs/statistics.md` says why."""

from analysis.statistics.ratios import RatioEstimate, Scope, estimate_ratio, mean_ratio
from analysis.statistics.series import find_outliers
