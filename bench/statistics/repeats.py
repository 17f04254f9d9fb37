"""What repeats say together: of one configuration, and of many tests at once.

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
from typing import NamedTuple

from bench.errors import Unknown

# SciPy is imported where it is used: it takes half a second, and a kit has none.

LEVEL = 0.95  # of every interval


class Interval(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


class LogError(NamedTuple):
    """The standard error of a logarithm, and the degrees of freedom of its Student's t."""

    deviation: float
    degrees: float

    def interval(self, log_value: float) -> Interval:
        """Return the interval of the value whose logarithm is `log_value`."""
        from scipy import special

        half = float(special.stdtrit(self.degrees, (1 + LEVEL) / 2)) * self.deviation
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
