"""What one window of iterations says of its own mean or median, and how surely.

Iterations resemble their neighbours, so drawing them one by one makes intervals too narrow, and
drawing blocks alone still does at a hundred iterations (88 % instead of 95 % at a correlation of
0.7). So the correlation is taken out first, blocks of what is left are drawn (their length by
Politis and White), and the correlation is put back: the post-blackened bootstrap, Davison and
Hinkley, Bootstrap Methods and their Application, 1997, section 8.2.3. The half-width is the
bootstrap's deviation times Student's t for the number of independent iterations.

It holds for this window alone. No window shows how much another repeat would differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analysis.statistics.student import half_width
from bench.records.verdict.drift import lag_one_correlation

Values = Sequence[float] | NDArray[np.float64]


def effective_count(values: Values) -> float:
    """Return how many independent values estimate the mean as well: n (1 - r) / (1 + r)."""
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


Statistic = Literal["mean", "median"]
_STATISTICS: dict[Statistic, Callable[..., NDArray[np.float64]]] = {
    "mean": np.mean,
    "median": np.median,
}
#: Draws: the half-width is then good to 2 %.
_DRAWS = 1000
#: Values drawn before those that count, so that the correlation has set in.
_SETTLING = 40
#: Fewer iterations say nothing about how they are correlated.
_FEW = 5


@dataclass(frozen=True)
class WindowEstimate:
    """A mean or median of one window, in its values' unit, with its interval."""

    value: float
    low: float
    high: float
    deviation: float  # standard error of `value`
    effective_count: float  # independent iterations


def estimate_window(
    values: Values, statistic: Statistic = "median", *, level: float = 0.95, seed: int = 0
) -> WindowEstimate | None:
    """Return `statistic` of the iterations with its interval, or None for fewer than five."""
    series = np.asarray(values, dtype=float)
    if len(series) < _FEW:
        return None
    function = _STATISTICS[statistic]
    value = float(function(series))
    draws = _drawn_windows(series, np.random.default_rng(seed))
    deviation = float(np.std(function(draws, axis=1), ddof=1))
    independent = effective_count(series)
    half = half_width(independent - 1, level) * deviation
    return WindowEstimate(value, value - half, value + half, deviation, independent)


def _drawn_windows(series: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Windows that could have been measured, around a mean of 0; shape (draws, iterations)."""
    from scipy import signal  # takes half a second to import, which `import analysis` does without

    count, correlation = len(series), lag_one_correlation(series.tolist())
    deviations = series - series.mean()
    shocks = deviations[1:] - correlation * deviations[:-1]
    # Deviations from a mean that was itself estimated, and a correlation likewise, are too small.
    shocks = (shocks - shocks.mean()) * np.sqrt(count / (count - 2))
    length = block_length(shocks)
    needed = count + _SETTLING
    blocks = -(-needed // length)
    starts = random.integers(0, len(shocks), (_DRAWS, blocks, 1))
    places = (starts + np.arange(length)).reshape(_DRAWS, -1)[:, :needed] % len(shocks)
    drawn = signal.lfilter([1.0], [1.0, -correlation], shocks[places], axis=1)
    windows: NDArray[np.float64] = drawn[:, _SETTLING:]
    return windows
