"""The ratio of two groups of repeats, its interval, what that is of, and how many would decide."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np

from bench.errors import Unknown
from bench.statistics.repeats import (
    LEVEL,
    Interval,
    LogError,
    Repeats,
    of_logs,
    pooled_scatter,
)

#: What another measurement may change for the interval to still hold: nothing, the repeats, or the
#: machine too. From the narrowest to the widest.
Scope = Literal["these runs", "this machine", "one machine against a kind", "this kind of machine"]
_SCOPES: tuple[Scope, ...] = get_args(Scope)
#: How often a change of the stated size is found.
POWER = 0.8
_TRIED = (3, 4, 5, 6, 8, 10, 15, 20, 30, 50)
_DRAWS = 20_000


@dataclass(frozen=True)
class RatioEstimate:
    """value(a) / value(b) with the error of its logarithm, unknown without any repeats."""

    ratio: float
    error: LogError | Unknown
    scope: Scope = "these runs"

    @property
    def interval(self) -> Interval | Unknown:
        """The interval of the ratio."""
        return self.error.interval(math.log(self.ratio)) if self.error else self.error

    @property
    def ends(self) -> tuple[float, float] | tuple[None, None]:
        """Both ends of the interval for a table; None where it is not known."""
        return self.interval or (None, None)

    def p_above(self, limit: float) -> float:
        """Return the p-value of the hypothesis that the ratio is at most `limit`: 1 if unknown."""
        return self.error.p_value(math.log(self.ratio) - math.log(limit)) if self.error else 1.0

    def p_below(self, limit: float) -> float:
        """Return the p-value of the hypothesis that the ratio is at least `limit`: 1 if unknown."""
        return self.error.p_value(math.log(limit) - math.log(self.ratio)) if self.error else 1.0


def mean_ratio(estimates: Sequence[RatioEstimate]) -> RatioEstimate:
    """Return the geometric mean of independent ratios, with the error of the mean.

    The squares of the standard errors add up, and the degrees of freedom are Satterthwaite's. Of
    machines of a kind the errors themselves add up, since a slow machine is slow in all of them.
    That the ratios differ widens nothing: the mean is of these. Its scope is the narrowest one.
    """
    count = len(estimates)
    ratio = math.exp(sum(math.log(estimate.ratio) for estimate in estimates) / count)
    errors = [estimate.error for estimate in estimates if estimate.error]
    if len(errors) < count:
        return RatioEstimate(ratio, Unknown("some of the ratios have no error"))
    scopes = [_SCOPES.index(estimate.scope) for estimate in estimates]
    if max(scopes) > 1:
        deviation = sum(error.deviation for error in errors) / count
        degrees = min(error.degrees for error in errors)
    else:
        deviation = math.sqrt(sum(error.deviation**2 for error in errors)) / count
        shares = sum(error.deviation**4 / error.degrees for error in errors)
        degrees = (count * deviation) ** 4 / shares if shares else float(count)
    return RatioEstimate(ratio, LogError(deviation, degrees), _SCOPES[min(scopes)])


def estimate_ratio(a: Repeats, b: Repeats) -> RatioEstimate:
    """Return value(a) / value(b) with its error.

    What is compared are the repeats of each side, or its machines where there are several. Two or
    more on each side: Welch's t. One on one side: the scatter of the other stands for both. One on
    both: no error, because nothing shows how much they differ. The same machines on both sides: one
    ratio a machine, and Student's t of their logarithms: what machines differ in does not count.
    """
    ratio = math.exp(a.log_mean - b.log_mean)
    if len(a.machines) > 1 and a.machines.keys() == b.machines.keys():
        ratios = [a.machines[machine] - b.machines[machine] for machine in a.machines]
        variance = max(statistics.variance(ratios), a.rounding + b.rounding)
        paired = LogError(math.sqrt(variance / len(ratios)), len(ratios) - 1)
        return RatioEstimate(ratio, paired, "this kind of machine")
    ours, theirs = a.units, b.units
    scattered = [side for side in (ours, theirs) if side.log_variance is not None]
    if not scattered:
        single = a.count == b.count == 1
        why = "one run on each side" if single else "repeats summed up without their scatter"
        return RatioEstimate(ratio, Unknown(f"{why}: repeat-to-repeat variance unknown"))
    if len(scattered) == 2:
        return RatioEstimate(ratio, _welch(ours, theirs), _scope(a, b))
    deviation = math.sqrt(scattered[0].variance * (1 / ours.count + 1 / theirs.count))
    return RatioEstimate(ratio, LogError(deviation, scattered[0].count - 1), _scope(a, b))


def paired_ratio(log_ratios: Sequence[float], before: Iterable[Repeats] = ()) -> RatioEstimate:
    """Return the mean of ratios of runs by turns, of which `log_ratios` are the logarithms.

    Their scatter is pooled with that of the comparisons `before`, and is at least their own.
    """
    own = of_logs(log_ratios)
    scatter = pooled_scatter([own, *before])
    if not scatter:
        return RatioEstimate(own.centre, scatter)
    deviation = max(scatter.deviation, own.relative_deviation or 0.0) / math.sqrt(own.count)
    return RatioEstimate(own.centre, LogError(deviation, scatter.degrees))


def _scope(a: Repeats, b: Repeats) -> Scope:
    """Machines of a kind where a side has several, these runs where one is not known."""
    fewest, most = sorted((len(a.machines), len(b.machines)))
    return _SCOPES[0 if not fewest else min(fewest, 2) + min(most, 2) - 1]


def _welch(a: Repeats, b: Repeats) -> LogError:
    """Welch's t, with degrees of freedom that two repeats against many do not make too sure.

    Welch and Satterthwaite weigh the sides by their estimated errors. Two repeats that happen to
    lie close have hardly any, so that the many decide, and the interval covers 90 %. Here each
    side's error is first divided by its own degrees of freedom: the fewer repeats weigh more.
    """
    sides = (a, b)
    errors = [side.variance / side.count for side in sides]
    if not any(errors):
        return LogError(0.0, a.count + b.count - 2)
    weights = [error / (side.count - 1) for error, side in zip(errors, sides, strict=True)]
    shares = [weight / sum(weights) for weight in weights]
    inverse = sum(share**2 / (side.count - 1) for share, side in zip(shares, sides, strict=True))
    return LogError(math.sqrt(sum(errors)), 1 / inverse)


def smallest_change(
    deviation: float, repeats: int, *, threshold: float = 0.02, among: int = 1
) -> float:
    """Return the change of one of `among` configurations that is found in `POWER` of all cases.

    `deviation` is the relative standard deviation between repeats, of which each side has as many
    as `repeats` (three or more); a change of 0.03 is a factor of 1.03. Found means that the whole
    interval (Welch's t, corrected for the number of configurations) lies beyond `threshold`.
    """
    needed = _needed(repeats, (1 - LEVEL) / (2 * among))
    return (1 + threshold) * math.exp(deviation * needed) - 1


def deciding_repeats(a: Repeats, b: Repeats, limit: float, alpha: float) -> int | Unknown:
    """Return how many repeats on each side decide in four of five cases whether `limit` is passed.

    As far as ratio and scatter of those at hand can say; the test is one-sided, at `alpha`.
    """
    variances = [side.variance for side in (a, b) if side.log_variance is not None]
    deviation = math.sqrt(statistics.fmean(variances))
    beyond = abs(abs(a.log_mean - b.log_mean) - math.log(limit))
    more = (n for n in _TRIED if n > max(a.count, b.count))
    enough = (n for n in more if deviation * _needed(n, alpha) <= beyond)
    return next(enough, Unknown(f"over {_TRIED[-1]}"))


@cache
def _needed(repeats: int, alpha: float) -> float:
    """By how many deviations between repeats a change must pass the threshold to be found.

    Variances of both sides are drawn, since both the standard error and Welch's degrees of freedom
    follow from them; given these the chance to find a change is a normal one.
    """
    from scipy import optimize, special

    rng = np.random.default_rng(0)
    a, b = rng.chisquare(repeats - 1, (2, _DRAWS)) / (repeats - 1)
    error = np.sqrt((a + b) / repeats)
    degrees = (repeats - 1) * (a + b) ** 2 / (a**2 + b**2)
    margin = special.stdtrit(degrees, 1 - alpha) * error
    deviation = math.sqrt(2 / repeats)

    def missing(beyond: float) -> float:
        return float(np.mean(special.ndtr((beyond - margin) / deviation))) - POWER

    return float(optimize.brentq(missing, 0.0, 1e6))
