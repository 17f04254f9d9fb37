"""The ratio of two groups of repeats, its interval, what that is of, and how many would decide."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np

from analysis.statistics.repeats import Repeats
from analysis.statistics.student import chance_below, half_width

#: What another measurement may change for the interval to still hold: nothing, the repeats, or the
#: machine too.
Covers = Literal["these runs", "this machine", "one machine against a kind", "this kind of machine"]
#: From the narrowest to the widest.
_SCOPES: tuple[Covers, ...] = get_args(Covers)
#: How often a change of the stated size is found.
POWER = 0.8
_TRIED = (3, 4, 5, 6, 8, 10, 15, 20, 30, 50)
_DRAWS = 20_000
#: Standard error of the ratio's logarithm, its degrees of freedom, and the method.
_Spread = tuple[float, float, str]


@dataclass(frozen=True)
class RatioEstimate:
    """value(a) / value(b); `deviation` is the standard error of its logarithm.

    Without repeats on either side only the ratio is known. `covers` says what the interval is of,
    and so the ratio: these runs, repeats on this machine of each side, machines of this kind, or
    one machine of one side against the kind of the other.
    """

    ratio: float
    low: float | None
    high: float | None
    deviation: float | None
    degrees: float | None  # of freedom, of Student's t
    method: str
    covers: Covers = "these runs"

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

    The squares of the standard errors add up, and the degrees of freedom are Satterthwaite's. Of
    machines of a kind the errors themselves add up, since a slow machine is slow in all of them.
    That the ratios differ among each other widens nothing: the mean is of these ratios. Without an
    error of each there is none of the mean. It covers what the narrowest of them covers.
    """
    count = len(estimates)
    ratio = math.exp(sum(math.log(one.ratio) for one in estimates) / count)
    method = "geometric mean"
    errors = [one.deviation for one in estimates if one.deviation is not None]
    if len(errors) < count:
        return RatioEstimate(ratio, None, None, None, None, method)
    covers = min((one.covers for one in estimates), key=_SCOPES.index)
    each = [one.degrees or 1.0 for one in estimates]
    if any(_SCOPES.index(one.covers) > 1 for one in estimates):
        deviation, degrees = sum(errors) / count, min(each)
    else:
        deviation = math.sqrt(sum(error**2 for error in errors)) / count
        shares = [error**4 / own for error, own in zip(errors, each, strict=True)]
        degrees = (count * deviation) ** 4 / sum(shares) if any(shares) else float(count)
    return _estimate(math.log(ratio), (deviation, degrees, method), covers, level)


def estimate_ratio(a: Repeats, b: Repeats, *, level: float = 0.95) -> RatioEstimate:
    """Return value(a) / value(b) with its interval at `level`.

    What is compared are the repeats of each side, or its machines where there are several. Two or
    more on each side: Welch's t, which lets the sides scatter differently. One on one side: pooled,
    which takes the scatter of the other for both. One on both: no interval, because nothing shows
    how much they differ. The same machines on both sides: one ratio a machine, and Student's t of
    their logarithms, so that what machines differ in does not count.
    """
    difference = a.log_mean - b.log_mean
    if len(a.machines) > 1 and a.machines.keys() == b.machines.keys():
        return _estimate(difference, _paired(a, b), "this kind of machine", level)
    ours, theirs = a.units, b.units
    known = [side for side in (ours, theirs) if side.log_variance is not None]
    if not known:
        method = "one window on each side: repeat-to-repeat variance unknown"
        return RatioEstimate(math.exp(difference), None, None, None, None, method)
    spread = _welch(ours, theirs) if len(known) == 2 else _pooled(ours, theirs)
    return _estimate(difference, spread, _covered(a, b), level)


def _estimate(difference: float, spread: _Spread, covers: Covers, level: float) -> RatioEstimate:
    deviation, degrees, _ = spread
    half = half_width(degrees, level) * deviation
    low, high = math.exp(difference - half), math.exp(difference + half)
    return RatioEstimate(math.exp(difference), low, high, *spread, covers)


def _covered(a: Repeats, b: Repeats) -> Covers:
    """Machines of a kind are covered where a side has several, runs where one is not known."""
    fewest, most = sorted((len(a.machines), len(b.machines)))
    return _SCOPES[0 if not fewest else min(fewest, 2) + min(most, 2) - 1]


def _paired(a: Repeats, b: Repeats) -> _Spread:
    ratios = [a.machines[machine] - b.machines[machine] for machine in a.machines]
    variance = max(statistics.variance(ratios), a.rounding + b.rounding)
    deviation = math.sqrt(variance / len(ratios))
    return deviation, len(ratios) - 1, "Student's t of one ratio a machine"


def _pooled(a: Repeats, b: Repeats) -> _Spread:
    known = a if a.log_variance is not None else b
    variance, degrees = known.variance, known.count - 1
    method = "pooled t: the scatter of the side with repeats stands for both"
    return math.sqrt(variance * (1 / a.count + 1 / b.count)), degrees, method


def _welch(a: Repeats, b: Repeats) -> _Spread:
    """Welch's t, with degrees of freedom that two repeats against many do not make too sure.

    Welch and Satterthwaite weigh the sides by their estimated errors. Two repeats that happen to
    lie close have hardly any error, so that the many decide, and the interval covers 90 % (two
    against five that scatter half as much). Here each side's error is divided by its own degrees of
    freedom first: the fewer repeats weigh more. With as many on each side it is Welch's own.
    """
    sides = (a, b)
    errors = [side.variance / side.count for side in sides]
    if not any(errors):
        return 0.0, a.count + b.count - 2, "Welch's t"
    weights = [error / (side.count - 1) for error, side in zip(errors, sides, strict=True)]
    shares = [weight / sum(weights) for weight in weights]
    inverse = sum(share**2 / (side.count - 1) for share, side in zip(shares, sides, strict=True))
    return math.sqrt(sum(errors)), 1 / inverse, "Welch's t"


def smallest_change(
    deviation: float,
    repeats: int,
    *,
    threshold: float = 0.02,
    among: int = 1,
    power: float = POWER,
    level: float = 0.95,
) -> float:
    """Return the change of one of `among` configurations that is found in `power` of all cases.

    `deviation` is the relative standard deviation between repeats, of which each side has as many
    as `repeats` (three or more); a change of 0.03 is a factor of 1.03. Found means that the whole
    interval (Welch's t, corrected for the number of configurations) lies beyond `threshold`.
    """
    needed = _needed(repeats, (1 - level) / (2 * among), power)
    return (1 + threshold) * math.exp(deviation * needed) - 1


def deciding_repeats(a: Repeats, b: Repeats, limit: float, alpha: float) -> int | None:
    """Return how many repeats on each side decide in four of five cases whether `limit` is passed.

    As far as the ratio and the scatter of those at hand can say; the test is one-sided, at `alpha`.
    None where that takes more than 50.
    """
    known = [side.variance for side in (a, b) if side.log_variance is not None]
    deviation = math.sqrt(statistics.fmean(known))
    beyond = abs(abs(a.log_mean - b.log_mean) - math.log(limit))
    more = (n for n in _TRIED if n > max(a.count, b.count))
    return next((n for n in more if deviation * _needed(n, alpha, POWER) <= beyond), None)


@cache
def _needed(repeats: int, alpha: float, power: float) -> float:
    """By how many deviations between repeats a change must pass the threshold to be found.

    Variances of both sides are drawn, since both the standard error and Welch's degrees of freedom
    follow from them; given these the chance to find a change is a normal one.
    """
    from scipy import optimize, special  # half a second to import, and a kit has none

    rng = np.random.default_rng(0)
    a, b = rng.chisquare(repeats - 1, (2, _DRAWS)) / (repeats - 1)
    error = np.sqrt((a + b) / repeats)
    degrees = (repeats - 1) * (a + b) ** 2 / (a**2 + b**2)
    margin = special.stdtrit(degrees, 1 - alpha) * error
    deviation = math.sqrt(2 / repeats)

    def missing(beyond: float) -> float:
        return float(np.mean(special.ndtr((beyond - margin) / deviation))) - power

    return float(optimize.brentq(missing, 0.0, 1e6))
