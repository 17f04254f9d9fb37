"""Whether a window was measured in steady state: its first third against its last.

The one rule of the project: a record's verdict decides by it, and the analysis asks the verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

#: Of the mean. A drift of 5 % between the thirds moves the window's mean by about 2.5 %, which is
#: more than the 2 % that a comparison takes for no change.
DRIFT = 0.05
#: One window in a hundred may be called drifting by chance.
_LEVEL = 0.01
_MIN_ITERATIONS = 15
#: A correlation above this leaves so few independent values that no interval means anything.
_MAX_CORRELATION = 0.95


@dataclass(frozen=True)
class Drift:
    """The relative change of the mean from the first to the last third.

    `p_value` is two-sided, of no change. `changed_at` is the iteration after which the times
    changed most: that of the largest cumulative sum of deviations.
    """

    change: float
    p_value: float
    changed_at: int

    @property
    def is_drifting(self) -> bool:
        """Whether the change is over 5 % and not by chance (p < 0.01)."""
        return abs(self.change) > DRIFT and self.p_value < _LEVEL


def window_drift(times_s: Sequence[float]) -> Drift | None:
    """Compare the first third of a window with the last; None for fewer than 15 iterations.

    A t-test that allows for correlated iterations: each third counts as n (1 - r) / (1 + r) of
    them, with the correlation r of neighbours. A single slow iteration widens the test instead of
    failing it.
    """
    if len(times_s) < _MIN_ITERATIONS:
        return None
    size = len(times_s) // 3
    thirds = (times_s[:size], times_s[size:-size], times_s[-size:])
    first, _, last = (statistics.fmean(third) for third in thirds)
    # Taken after the thirds' own means, so that a drift does not pass for correlation.
    residuals = [_deviations(third) for third in thirds]
    correlation = lag_one_correlation([one for third in residuals for one in third])
    independent = max(size * (1 - correlation) / (1 + correlation), 2.0)
    squares = math.fsum(one**2 for third in (residuals[0], residuals[-1]) for one in third)
    variance = squares / (2 * (size - 1))
    # A third's own mean follows its iterations, so its variance comes out too small by this.
    variance /= max(1 - 1 / independent, 0.5)
    p_value = 1.0 if first == last else 0.0
    if variance > 0:
        distance = abs(last - first) / math.sqrt(2 * variance / independent)
        p_value = _two_sided_p(distance, 2 * (independent - 1))
    sums = list(accumulate(_deviations(times_s)))[:-1]
    changed_at = max(range(len(sums)), key=lambda place: abs(sums[place])) + 1
    return Drift(last / first - 1, p_value, changed_at)


def lag_one_correlation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the next, 0 to 0.95.

    The estimate is biased low by about (1 + 3 r) / n (Marriott and Pope, Biometrika 41, 1954),
    which is put back. A negative one counts as none, since it would make intervals narrower.
    """
    deviations = _deviations(values)
    spread = math.fsum(one**2 for one in deviations)
    if len(deviations) < 3 or spread == 0:
        return 0.0
    raw = math.fsum(one * following for one, following in pairwise(deviations)) / spread
    return min(max(raw + (1 + 3 * raw) / len(deviations), 0.0), _MAX_CORRELATION)


def _deviations(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [value - mean for value in values]


def _two_sided_p(distance: float, degrees: float) -> float:
    """Return Student's two-sided p-value; at p = 0.01 and 4 degrees or more good to 5 %.

    Wallace, Annals of Mathematical Statistics 30, 1959: the normal deviate of the same tail.
    """
    deviate = math.sqrt(degrees * math.log1p(distance**2 / degrees))
    deviate *= (8 * degrees + 1) / (8 * degrees + 3)
    return 2 * statistics.NormalDist().cdf(-deviate)
