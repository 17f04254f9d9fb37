"""What repeats of one configuration say together.

Each repeat gives one number, the logarithm of its value, so that ratios are differences and a
deviation is a relative one. The numbers hold both kinds of noise, that between repeats and what is
left of that between iterations, in their true proportion, however iterations are correlated. Their
mean has Student's t with one degree of freedom less than there are repeats, which is exact for any
number from two on; resampling three repeats is not (a bootstrap covers about 80 %).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special


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
        quantile = float(special.stdtrit(self.count - 1, (1 + level) / 2))
        half = quantile * math.sqrt(self.log_variance / self.count)
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
    known = deviation is not None and count > 1
    variance = (deviation / mean) ** 2 if known and deviation is not None else None
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
