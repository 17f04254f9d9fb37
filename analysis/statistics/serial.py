"""How much neighbouring iterations resemble each other, and what that leaves of their number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.records.verdict.drift import lag_one_correlation

Values = Sequence[float] | NDArray[np.float64]


def effective_count(values: Values) -> float:
    """Return how many independent values tell as much of the mean: n (1 - r) / (1 + r)."""
    correlation = lag_one_correlation(np.asarray(values, dtype=float).tolist())
    return max(len(values) * (1 - correlation) / (1 + correlation), 2.0)


def block_length(values: Values) -> int:
    """Return the length of the blocks in which a circular bootstrap should draw `values`.

    Politis and White (Econometric Reviews 23, 2004) as corrected by Patton, Politis and White
    (28, 2009): the flat-top kernel over the lags that are correlated at all.
    """
    series = np.asarray(values, dtype=float)
    count = len(series)
    deviations = series - series.mean()
    if count < 8 or not np.any(deviations):
        return 1
    quiet_run = max(5, math.ceil(math.sqrt(math.log10(count))))
    last = min(math.ceil(math.sqrt(count)) + quiet_run, count - 1)
    covariances = np.array(
        [deviations[lag:] @ deviations[: count - lag] for lag in range(last + 1)]
    )
    covariances /= count
    bandwidth = min(2 * _last_correlated(covariances, count, quiet_run), last)
    lags = np.arange(-bandwidth, bandwidth + 1)
    weights = np.minimum(1.0, 2 * (1 - np.abs(lags) / bandwidth))
    weighted = weights * covariances[np.abs(lags)]
    long_run = float(weighted.sum())
    bend = float((np.abs(lags) * weighted).sum())
    if long_run <= 0:
        return 1
    best = (2 * bend**2 / (4 / 3 * long_run**2)) ** (1 / 3) * count ** (1 / 3)
    return int(min(max(math.ceil(best), 1), math.ceil(min(3 * math.sqrt(count), count / 3))))


def _last_correlated(covariances: NDArray[np.float64], count: int, quiet_run: int) -> int:
    """The lag after which `quiet_run` correlations in a row are noise, at least 1."""
    noise = 2 * math.sqrt(math.log10(count) / count)
    loud = np.abs(covariances / covariances[0]) >= noise
    for lag in range(1, len(loud)):
        if not loud[lag : lag + quiet_run].any():
            return max(lag - 1, 1)
    return len(loud) - 1
