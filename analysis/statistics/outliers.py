"""Iterations far from the others: named and counted, and left where they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.statistics.serial import Values

#: Robust deviations from the median; of normal noise one iteration in 1.7 million.
_FAR = 5.0
#: Of a normal distribution, the deviation over the median absolute one.
_NORMAL = 1.4826
#: Times read from a clock repeat exactly; a spread of 0 would make every other one an outlier.
_LEAST_SPREAD = 1e-3


@dataclass(frozen=True)
class Outliers:
    """Places of the slow and the fast outliers, and what they add to the mean, as a share."""

    slow: tuple[int, ...]
    fast: tuple[int, ...]
    share_of_mean: float

    @property
    def count(self) -> int:
        """Outliers of both kinds."""
        return len(self.slow) + len(self.fast)


def find_outliers(times: Values) -> Outliers:
    """Return the iterations over five robust deviations from the median."""
    series = np.asarray(times, dtype=float)
    median = float(np.median(series))
    spread = _NORMAL * float(np.median(np.abs(series - median)))
    limit = _FAR * max(spread, _LEAST_SPREAD * median)
    slow = np.flatnonzero(series > median + limit)
    fast = np.flatnonzero(series < median - limit)
    mean = float(series.mean())
    added = float((series[slow] - median).sum() + (series[fast] - median).sum())
    share = added / len(series) / mean if mean else 0.0
    return Outliers(tuple(map(int, slow)), tuple(map(int, fast)), share)
