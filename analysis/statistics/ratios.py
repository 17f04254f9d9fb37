"""The ratio of two groups of repeats, its interval, and what that interval speaks of."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.statistics.repeats import Repeats
from analysis.statistics.student import chance_below, half_width

#: What another measurement may change for the interval to still hold: nothing, the repeats, or the
#: machine too.
Covers = Literal["these runs", "this machine", "this kind of machine"]
#: From the narrowest to the widest.
_SCOPES: tuple[Covers, ...] = ("these runs", "this machine", "this kind of machine")
#: Standard error of the ratio's logarithm, its degrees of freedom, and the method.
_Spread = tuple[float, float, str]


@dataclass(frozen=True)
class RatioEstimate:
    """value(a) / value(b); `deviation` is the standard error of its logarithm.

    Without repeats on either side only the ratio is known. `covers` says what the interval is of,
    and so the ratio: these runs, repeats on this machine of each side, or machines of this kind.
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
    if any(one.covers == "this kind of machine" for one in estimates):
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
    """Machines of a kind are covered where each side has several, runs where one is not known."""
    fewest = min(len(a.machines), len(b.machines))
    return _SCOPES[min(fewest, 2)]


def _paired(a: Repeats, b: Repeats) -> _Spread:
    ratios = [a.machines[machine] - b.machines[machine] for machine in a.machines]
    deviation = math.sqrt(statistics.variance(ratios) / len(ratios))
    return deviation, len(ratios) - 1, "Student's t of one ratio a machine"


def _pooled(a: Repeats, b: Repeats) -> _Spread:
    known = a if a.log_variance is not None else b
    variance, degrees = known.log_variance or 0.0, known.count - 1
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
    errors = [(side.log_variance or 0.0) / side.count for side in sides]
    if not any(errors):
        return 0.0, a.count + b.count - 2, "Welch's t"
    weights = [error / (side.count - 1) for error, side in zip(errors, sides, strict=True)]
    shares = [weight / sum(weights) for weight in weights]
    inverse = sum(share**2 / (side.count - 1) for share, side in zip(shares, sides, strict=True))
    return math.sqrt(sum(errors)), 1 / inverse, "Welch's t"
