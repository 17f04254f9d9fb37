"""When a comparison of two settings has seen enough.

The settings are measured in alternation, so that each pair of neighbouring runs gives one
logarithm of a ratio from which the machine's slow drift has gone. After two, three and four pairs
Student's t gives the mean's one-sided bounds. The deviation is pooled over all comparisons of the
search: how much neighbouring runs differ is a property of the machine, and two pairs alone would
not know it. Where a comparison itself scatters more, its own deviation counts. Bonferroni's share
for each of the three tests keeps the errors of the whole comparison: a knob that does nothing is
adopted in at most one out of a hundred (a search makes a dozen), and one that is faster by more
than a tie is given up in at most one out of twenty.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import special

#: Chance, in one comparison, of adopting a knob that does nothing.
ADOPTION_ERROR = 0.01
#: And of giving one up that is faster by more than a tie.
LOSS_ERROR = 0.05
FIRST_TEST, LAST_TEST = 2, 4
#: Gains below this are not worth more time.
TIE = 0.01
#: One window so far below the incumbent's needs no second, unless the machine scatters so much
#: that this many deviations reach further.
FAR_SLOWER = 0.90
_DEVIATIONS = 4

Ruling = Literal["faster", "not faster", "undecided", "measure on"]


@dataclass(frozen=True)
class Interval:
    """A geometric mean of ratios; without bounds where one ratio cannot give any."""

    ratio: float
    low: float | None
    high: float | None


class Noise:
    """How much neighbouring runs of the same settings differ, from every comparison so far."""

    def __init__(self) -> None:
        self._squares = 0.0
        self._degrees = 0

    def add(self, log_ratios: Sequence[float]) -> None:
        """Take in a comparison that is over."""
        self._squares += _squares(log_ratios)
        self._degrees += max(0, len(log_ratios) - 1)

    def add_runs(self, log_rates: Sequence[float]) -> None:
        """Take in runs of one setting; a ratio of two has twice the variance of one."""
        self._squares += 2 * _squares(log_rates)
        self._degrees += len(log_rates) - 1

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the logarithm of two neighbouring runs' ratio, once known."""
        return math.sqrt(self._squares / self._degrees) if self._degrees else None

    @property
    def far_slower(self) -> float:
        """Below this ratio, one pair says enough."""
        return min(FAR_SLOWER, math.exp(-_DEVIATIONS * (self.deviation or 0.0)))

    def interval(self, log_ratios: Sequence[float], below: float, above: float) -> Interval:
        """Return the mean ratio, and bounds that the truth is below or above with these chances."""
        mean = statistics.fmean(log_ratios)
        degrees = self._degrees + len(log_ratios) - 1
        if degrees == 0:
            return Interval(math.exp(mean), None, None)
        pooled = (self._squares + _squares(log_ratios)) / degrees
        own = _squares(log_ratios) / max(1, len(log_ratios) - 1)
        deviation = math.sqrt(max(pooled, own) / len(log_ratios))
        low, high = special.stdtrit(degrees, [below, 1 - above]) * deviation
        return Interval(math.exp(mean), math.exp(mean + low), math.exp(mean + high))


def judge_pairs(log_ratios: Sequence[float], noise: Noise) -> tuple[Ruling, Interval]:
    """Return what the pairs so far say of the challenger, and the interval that says it."""
    tests = LAST_TEST - FIRST_TEST + 1
    found = noise.interval(log_ratios, ADOPTION_ERROR / tests, LOSS_ERROR / tests)
    count = len(log_ratios)
    if count < FIRST_TEST:
        return ("not faster" if found.ratio < noise.far_slower else "measure on"), found
    assert found.low is not None and found.high is not None  # two pairs  # noqa: S101, PT018
    if found.low > 1:
        return "faster", found
    if found.high < 1 + TIE:
        return "not faster", found
    return ("measure on" if count < LAST_TEST else "undecided"), found


def paired_interval(log_ratios: Sequence[float]) -> Interval:
    """Return the mean ratio of one comparison with Student's 95 % interval from its pairs alone."""
    return Noise().interval(log_ratios, 0.025, 0.025)


def _squares(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values)
