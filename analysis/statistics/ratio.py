"""How many times one group's value is another's, with an interval that holds.

Three repeats or more on either side: Welch's t, which lets the two sides scatter differently. Two
on one side: the wider of Welch's and the pooled interval, since Welch's is too narrow for two
repeats against many. One on one side: pooled, which takes the scatter of the side that has
repeats for both. One on both: no interval, because nothing shows how much repeats differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from analysis.statistics.repeats import Repeats

#: From so many repeats on either side, Welch's interval alone covers what it says.
_ENOUGH = 3


@dataclass(frozen=True)
class RatioEstimate:
    """value(a) / value(b); `deviation` is the standard error of its logarithm.

    Without repeats on either side only the ratio is known.
    """

    ratio: float
    low: float | None
    high: float | None
    deviation: float | None
    degrees: float | None  # of freedom, of Student's t
    method: str

    def p_above(self, limit: float) -> float | None:
        """Return the one-sided p-value of the hypothesis that the ratio is at most `limit`."""
        return self._p(math.log(self.ratio) - math.log(limit))

    def p_below(self, limit: float) -> float | None:
        """Return the one-sided p-value of the hypothesis that the ratio is at least `limit`."""
        return self._p(math.log(limit) - math.log(self.ratio))

    def _p(self, beyond: float) -> float | None:
        if self.deviation is None:
            return None
        if self.deviation == 0:
            return 0.0 if beyond > 0 else 1.0
        return float(special.stdtr(self.degrees, -beyond / self.deviation))


@dataclass(frozen=True)
class _Spread:
    deviation: float
    degrees: float
    method: str

    def half(self, level: float) -> float:
        return float(special.stdtrit(self.degrees, (1 + level) / 2)) * self.deviation


def estimate_ratio(a: Repeats, b: Repeats, *, level: float = 0.95) -> RatioEstimate:
    """Return value(a) / value(b) with its interval at `level`."""
    difference = a.log_mean - b.log_mean
    spread = _spread(a, b, level)
    if spread is None:
        method = "one window on each side: repeat-to-repeat variance unknown"
        return RatioEstimate(math.exp(difference), None, None, None, None, method)
    half = spread.half(level)
    return RatioEstimate(
        math.exp(difference),
        math.exp(difference - half),
        math.exp(difference + half),
        spread.deviation,
        spread.degrees,
        spread.method,
    )


def _spread(a: Repeats, b: Repeats, level: float) -> _Spread | None:
    if a.log_variance is None and b.log_variance is None:
        return None
    pooled = _pooled(a, b)
    if a.log_variance is None or b.log_variance is None:
        return pooled
    welch = _welch(a, b)
    if min(a.count, b.count) >= _ENOUGH:
        return welch
    return max(welch, pooled, key=lambda spread: spread.half(level))


def _pooled(a: Repeats, b: Repeats) -> _Spread:
    known = [side for side in (a, b) if side.log_variance is not None]
    degrees = sum(side.count - 1 for side in known)
    squares = sum((side.count - 1) * (side.log_variance or 0.0) for side in known)
    deviation = math.sqrt(squares / degrees * (1 / a.count + 1 / b.count))
    lacking = "pooled t: the scatter of the side with repeats stands for both"
    return _Spread(deviation, degrees, "pooled t" if len(known) > 1 else lacking)


def _welch(a: Repeats, b: Repeats) -> _Spread:
    shares = [(side.log_variance or 0.0) / side.count for side in (a, b)]
    total = sum(shares)
    if total == 0:
        return _Spread(0.0, a.count + b.count - 2, "Welch's t")
    squares = sum(share**2 / (side.count - 1) for share, side in zip(shares, (a, b), strict=True))
    return _Spread(math.sqrt(total), total**2 / squares, "Welch's t")
