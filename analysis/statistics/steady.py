"""Whether a window was measured in steady state: its first third against its last."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from analysis.statistics.serial import Values, lag_one_correlation

#: Smaller changes are of no consequence, however sure they are.
LEAST_CHANGE = 0.02
#: One window in a hundred may be called drifting by chance.
_LEVEL = 0.01
_FEWEST = 15


@dataclass(frozen=True)
class SteadyState:
    """The relative change of the mean from the first to the last third, and what it means.

    `p_value` is two-sided, of no change. `changed_at` is the iteration after which the times
    changed most (by the largest cumulative sum), where there is a drift.
    """

    change: float
    p_value: float
    drifting: bool
    changed_at: int | None


def steady_state(times: Values) -> SteadyState | None:
    """Compare the first third of a window with the last; None for fewer than 15 iterations.

    The t-test allows for correlated iterations: each third counts as n (1 - r) / (1 + r) of them.
    A single slow iteration widens the test instead of failing it.
    """
    series = np.asarray(times, dtype=float)
    if len(series) < _FEWEST:
        return None
    third = len(series) // 3
    first, last = series[:third], series[-third:]
    # Taken after the thirds' own means, so that a drift does not pass for correlation.
    thirds = (first, series[third:-third], last)
    correlation = lag_one_correlation(np.concatenate([part - part.mean() for part in thirds]))
    independent = max(third * (1 - correlation) / (1 + correlation), 2.0)
    variance = float(first.var(ddof=1) + last.var(ddof=1)) / 2
    # A third's own mean follows its iterations, so its variance comes out too small by this.
    variance /= max(1 - 1 / independent, 0.5)
    change = float(last.mean() / first.mean()) - 1
    p_value = _p_value(float(last.mean() - first.mean()), variance, independent)
    drifting = abs(change) > LEAST_CHANGE and p_value < _LEVEL
    return SteadyState(change, p_value, drifting, _changed_at(series) if drifting else None)


def _p_value(difference: float, variance: float, independent: float) -> float:
    if variance == 0:
        return 1.0 if difference == 0 else 0.0
    distance = abs(difference) / math.sqrt(2 * variance / independent)
    return 2 * float(special.stdtr(2 * (independent - 1), -distance))


def _changed_at(series: NDArray[np.float64]) -> int:
    sums = np.cumsum(series - series.mean())
    return int(np.argmax(np.abs(sums[:-1]))) + 1
