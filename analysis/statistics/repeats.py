"""What repeats say together: of one configuration, of two, and of many pairs at once.

Each repeat gives one number, the logarithm of its value, so that ratios are differences and a
deviation is a relative one. The numbers hold both kinds of noise, that between repeats and what is
left of that between iterations, in their true proportion, however iterations are correlated. Their
mean has Student's t with one degree of freedom less than there are repeats, which is exact for any
number from two on; resampling three repeats is not (a bootstrap covers about 80 %).

Repeats of one machine resemble each other more than those of two machines of its kind. So where
several machines are known to have run, each machine's mean is one number, and the degrees of
freedom are one less than there are machines.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from analysis.statistics.student import half_width


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
        return _of_logs(list(self.machines.values()), self.rounding)

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
        units = self.units
        if units.log_variance is None:
            return RepeatEstimate(self.centre, None, None, self.count)
        error = math.sqrt(units.variance / units.count)
        half = half_width(units.count - 1, level) * error
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
    return _of_logs([math.log(value) for value in values], _rounding(values))


def _of_logs(logs: Sequence[float], rounding: float) -> Repeats:
    variance = statistics.variance(logs) if len(logs) > 1 else None
    return Repeats(len(logs), statistics.fmean(logs), variance, rounding=rounding)


def _rounding(values: Sequence[float]) -> float:
    """The variance of the logarithm of a value that was rounded to the last digit of `values`.

    Values within a unit of their last decimal are uniform in it: a twelfth of its square.
    """
    digits = (Decimal(repr(float(value))).normalize().as_tuple().exponent for value in values)
    unit = 10.0 ** min(0, *(digit for digit in digits if isinstance(digit, int)))
    return (unit / max(values)) ** 2 / 12


def summarised_repeats(mean: float, deviation: float | None, count: int) -> Repeats:
    """Return repeats of which only mean, standard deviation and number were written down."""
    variance = (deviation / mean) ** 2 if deviation is not None and count > 1 else None
    return Repeats(count, math.log(mean), variance)


def joined(parts: Sequence[Repeats], machines: Sequence[str | None] = ()) -> Repeats:
    """Return several groups of repeats of one configuration as one group.

    Sums of squares add up, within the groups and between them. Where a group of several came
    without a deviation there is none for the whole either. `machines` are those that ran the parts;
    each counts alike in the mean, however many repeats it has.
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
