"""What repeats say together, and the ratio of two groups of them, with its interval.

Each repeat gives one number, the logarithm of its value, so that ratios are differences and a
deviation is a relative one. It holds both kinds of noise, that between repeats and what is left of
that between iterations, however these are correlated. The mean has Student's t, which is exact from
two repeats on; a bootstrap of three covers about 80 %. Repeats of one machine resemble each other
more than machines of a kind do: where several ran, each machine's mean is one number.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Literal, NamedTuple, get_args

import numpy as np

from bench.errors import Unknown

# SciPy is imported where it is used: it takes half a second, and a kit has none.

LEVEL = 0.95  # of every interval


class Interval(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


class LogError(NamedTuple):
    """A standard error, mostly of a logarithm, and the degrees of freedom of its Student's t."""

    deviation: float
    degrees: float

    @property
    def half_width(self) -> float:
        """Half the interval of the logarithm."""
        from scipy import special

        return float(special.stdtrit(self.degrees, (1 + LEVEL) / 2)) * self.deviation

    def interval(self, log_value: float) -> Interval:
        """Return the interval of the value whose logarithm is `log_value`."""
        half = self.half_width
        return Interval(math.exp(log_value - half), math.exp(log_value + half))

    def p_value(self, beyond: float) -> float:
        """Return the one-sided p-value of a logarithm that lies so far beyond the tested one."""
        from scipy import special

        if self.deviation == 0:
            return 0.0 if beyond > 0 else 1.0
        return float(special.stdtr(self.degrees, -beyond / self.deviation))


@dataclass(frozen=True)
class Repeats:
    """Repeats of one configuration on the logarithmic scale; `log_variance` needs two.

    `machines` are the log means of each machine that ran them, by its identity: empty where that
    of some run is not known. Of several, `log_mean` is the mean of theirs. `rounding` is the
    variance that the last digit of the values leaves open.
    """

    count: int
    log_mean: float
    log_variance: float | None
    machines: Mapping[str, float] = field(default_factory=dict)
    rounding: float = 0.0

    @property
    def variance(self) -> float:
        """The variance of one repeat for a test: equal values may differ in what was rounded."""
        return max(self.log_variance or 0.0, self.rounding)

    @property
    def units(self) -> Repeats:
        """What was drawn independently: the machines where there are several, else the repeats."""
        if len(self.machines) < 2:
            return self
        return of_logs(list(self.machines.values()), self.rounding)

    @property
    def centre(self) -> float:
        """The geometric mean."""
        return math.exp(self.log_mean)

    @property
    def relative_deviation(self) -> float | None:
        """The deviation between repeats as a share of the mean."""
        return None if self.log_variance is None else math.sqrt(self.log_variance)

    @property
    def interval(self) -> Interval | Unknown:
        """The interval of the geometric mean."""
        units = self.units
        if units.log_variance is None:
            return Unknown("a single repeat, or repeats summed up without their scatter")
        error = LogError(math.sqrt(units.variance / units.count), units.count - 1)
        return error.interval(self.log_mean)


def repeats_of(values: Sequence[float]) -> Repeats:
    """Return the repeats of these positive values. Raises `ValueError` for others, or for none."""
    if not values or min(values) <= 0:
        raise ValueError("repeats need at least one value, all above 0")
    return of_logs([math.log(value) for value in values], _rounding(values))


def of_logs(logs: Sequence[float], rounding: float = 0.0) -> Repeats:
    """Return the repeats whose logarithms these are."""
    variance = statistics.variance(logs) if len(logs) > 1 else None
    return Repeats(len(logs), statistics.fmean(logs), variance, rounding=rounding)


def _rounding(values: Sequence[float]) -> float:
    """The variance of a logarithm that is uniform within the last digit of `values`."""
    digits = (Decimal(repr(float(value))).normalize().as_tuple().exponent for value in values)
    unit = 10.0 ** min(0, *(digit for digit in digits if isinstance(digit, int)))
    return (unit / max(values)) ** 2 / 12


def summarised_repeats(mean: float, deviation: float | None, count: int) -> Repeats:
    """Return repeats of which only mean, standard deviation and number were written down."""
    variance = (deviation / mean) ** 2 if deviation is not None and count > 1 else None
    return Repeats(count, math.log(mean), variance)


def joined(parts: Sequence[Repeats], machines: Sequence[str | None] = ()) -> Repeats:
    """Return several groups of repeats of one configuration as one group.

    Where a group of several came without a deviation there is none for the whole either. `machines`
    are those that ran the parts; each counts alike in the mean, however many repeats it has.
    """
    count = sum(part.count for part in parts)
    mean = sum(part.count * part.log_mean for part in parts) / count
    means = _machine_means(parts, machines)
    centre = statistics.fmean(means.values()) if len(means) > 1 else mean
    rounding = min(part.rounding for part in parts)
    if count == 1 or any(part.count > 1 and part.log_variance is None for part in parts):
        return Repeats(count, centre, None, means, rounding)
    within = sum((part.count - 1) * (part.log_variance or 0.0) for part in parts)
    between = sum(part.count * (part.log_mean - mean) ** 2 for part in parts)
    return Repeats(count, centre, (within + between) / (count - 1), means, rounding)


def _machine_means(parts: Sequence[Repeats], machines: Sequence[str | None]) -> dict[str, float]:
    if not machines or None in machines:
        return {}
    by_machine: dict[str, list[Repeats]] = {}
    for part, machine in zip(parts, machines, strict=True):
        by_machine.setdefault(f"{machine}", []).append(part)
    return {machine: joined(own).log_mean for machine, own in by_machine.items()}


def pooled_scatter(repeats: Iterable[Repeats]) -> LogError | Unknown:
    """Return the deviation of one repeat, pooled over several configurations."""
    pooled = [
        (group.count - 1, group.log_variance) for group in repeats if group.log_variance is not None
    ]
    if not pooled:
        return Unknown("no configuration has two repeats")
    degrees = sum(count for count, _ in pooled)
    return LogError(math.sqrt(sum(count * own for count, own in pooled) / degrees), degrees)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that keep the chance of any false finding under the level (Holm, 1979)."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, (value, index) in enumerate(sorted((p, i) for i, p in enumerate(p_values))):
        highest = max(highest, min(1.0, (len(p_values) - rank) * value))
        adjusted[index] = highest
    return adjusted


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
