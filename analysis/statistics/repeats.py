"""What repeats say together: of one configuration, of two, and of many pairs at once.

Each repeat gives one number, the logarithm of its value, so that ratios are differences and a
deviation is a relative one. The numbers hold both kinds of noise, that between repeats and what is
left of that between iterations, in their true proportion, however iterations are correlated. Their
mean has Student's t with one degree of freedom less than there are repeats, which is exact for any
number from two on; resampling three repeats is not (a bootstrap covers about 80 %).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from analysis.statistics.student import chance_below, half_width


@dataclass(frozen=True)
class Repeats:
    """Repeats of one configuration on the logarithmic scale; `log_variance` needs two."""

    count: int
    log_mean: float
    log_variance: float | None

    @property
    def centre(self) -> float:
        """The geometric mean."""
        return math.exp(self.log_mean)

    @property
    def relative_deviation(self) -> float | None:
        """The deviation between repeats as a share of the mean."""
        return None if self.log_variance is None else math.sqrt(self.log_variance)

    def interval(self, level: float = 0.95) -> RepeatEstimate:
        """Return the geometric mean with its interval, open where there is one repeat."""
        if self.log_variance is None:
            return RepeatEstimate(self.centre, None, None, self.count)
        error = math.sqrt(self.log_variance / self.count)
        half = half_width(self.count - 1, level) * error
        low, high = math.exp(self.log_mean - half), math.exp(self.log_mean + half)
        return RepeatEstimate(self.centre, low, high, self.count)


@dataclass(frozen=True)
class RepeatEstimate:
    """A geometric mean of repeats; without an interval where repeats cannot give one."""

    value: float
    low: float | None
    high: float | None
    count: int


def repeats_of(values: Sequence[float]) -> Repeats:
    """Return the repeats of these positive values. Raises `ValueError` for others, or for none."""
    if not values or min(values) <= 0:
        raise ValueError("repeats need at least one value, all above 0")
    logs = [math.log(value) for value in values]
    variance = statistics.variance(logs) if len(logs) > 1 else None
    return Repeats(len(logs), statistics.fmean(logs), variance)


def summarised_repeats(mean: float, deviation: float | None, count: int) -> Repeats:
    """Return repeats of which only mean, standard deviation and number were written down."""
    variance = (deviation / mean) ** 2 if deviation is not None and count > 1 else None
    return Repeats(count, math.log(mean), variance)


def joined(parts: Sequence[Repeats]) -> Repeats:
    """Return several groups of repeats of one configuration as one group.

    Sums of squares add up, within the groups and between them. Where a group of several came
    without a deviation there is none for the whole either.
    """
    count = sum(part.count for part in parts)
    mean = sum(part.count * part.log_mean for part in parts) / count
    if count == 1 or any(part.count > 1 and part.log_variance is None for part in parts):
        return Repeats(count, mean, None)
    within = sum((part.count - 1) * (part.log_variance or 0.0) for part in parts)
    between = sum(part.count * (part.log_mean - mean) ** 2 for part in parts)
    return Repeats(count, mean, (within + between) / (count - 1))


#: Standard error of the ratio's logarithm, its degrees of freedom, and the method.
_Spread = tuple[float, float, str]
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
        if self.deviation is None or self.degrees is None:
            return None
        if self.deviation == 0:
            return 0.0 if beyond > 0 else 1.0
        return chance_below(-beyond / self.deviation, self.degrees)


def mean_ratio(estimates: Sequence[RatioEstimate], *, level: float = 0.95) -> RatioEstimate:
    """Return the geometric mean of independent ratios, with the interval of its own error.

    The squares of the standard errors add up, and the degrees of freedom are Satterthwaite's. That
    the ratios differ among each other widens nothing: the mean is of these ratios. Without an
    error of each there is none of the mean.
    """
    count = len(estimates)
    ratio = math.exp(sum(math.log(one.ratio) for one in estimates) / count)
    method = "geometric mean"
    squares = [one.deviation**2 for one in estimates if one.deviation is not None]
    if len(squares) < count:
        return RatioEstimate(ratio, None, None, None, None, method)
    deviation = math.sqrt(sum(squares)) / count
    shares = [
        square**2 / (one.degrees or 1.0) for square, one in zip(squares, estimates, strict=True)
    ]
    degrees = sum(squares) ** 2 / sum(shares) if any(shares) else float(count)
    half = half_width(degrees, level) * deviation
    ends = ratio * math.exp(-half), ratio * math.exp(half)
    return RatioEstimate(ratio, *ends, deviation, degrees, method)


def estimate_ratio(a: Repeats, b: Repeats, *, level: float = 0.95) -> RatioEstimate:
    """Return value(a) / value(b) with its interval at `level`.

    Three repeats or more on either side: Welch's t, which lets the two sides scatter differently.
    Two on one side: the wider of Welch's and the pooled interval, since Welch's is too narrow for
    two repeats against many. One on one side: pooled, which takes the scatter of the side that has
    repeats for both. One on both: no interval, because nothing shows how much repeats differ.
    """
    difference = a.log_mean - b.log_mean
    known = [side.log_variance is not None for side in (a, b)]
    if not any(known):
        method = "one window on each side: repeat-to-repeat variance unknown"
        return RatioEstimate(math.exp(difference), None, None, None, None, method)
    spreads = [_welch(a, b)] if all(known) else []
    if not spreads or min(a.count, b.count) < _ENOUGH:
        spreads.append(_pooled(a, b))

    def half_of(spread: _Spread) -> float:
        return half_width(spread[1], level) * spread[0]

    widest = max(spreads, key=half_of)
    half = half_of(widest)
    low, high = math.exp(difference - half), math.exp(difference + half)
    return RatioEstimate(math.exp(difference), low, high, *widest)


def _pooled(a: Repeats, b: Repeats) -> _Spread:
    known = [side for side in (a, b) if side.log_variance is not None]
    degrees = sum(side.count - 1 for side in known)
    squares = sum((side.count - 1) * (side.log_variance or 0.0) for side in known)
    deviation = math.sqrt(squares / degrees * (1 / a.count + 1 / b.count))
    lacking = "pooled t: the scatter of the side with repeats stands for both"
    return deviation, degrees, "pooled t" if len(known) > 1 else lacking


def _welch(a: Repeats, b: Repeats) -> _Spread:
    shares = [(side.log_variance or 0.0) / side.count for side in (a, b)]
    total = sum(shares)
    if total == 0:
        return 0.0, a.count + b.count - 2, "Welch's t"
    squares = sum(share**2 / (side.count - 1) for share, side in zip(shares, (a, b), strict=True))
    return math.sqrt(total), total**2 / squares, "Welch's t"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values for which the chance of any false finding stays under the level.

    Holm, Scandinavian Journal of Statistics 6, 1979.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values for which the expected share of false findings stays under the level.

    Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995.
    """
    from scipy import stats  # takes half a second to import, which `import analysis` does without

    adjusted: list[float] = stats.false_discovery_control(list(p_values)).tolist()
    return adjusted


#: By name; p-values are raised so that chance alone does not find an effect among many.
CORRECTIONS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {
    "holm": holm,
    "bh": benjamini_hochberg,
    "none": list,
}
