"""When a device is warm, and what the times of a window say of its pace.

Other work on a machine only slows an iteration down. So a device is warm at its fastest iterations,
and its pace is a median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

#: Iterations that differ by less are of one pace.
_NEAR = 0.05
#: Of a warm-up: the fastest of more iterations is luck that does not come again.
_LATEST = 10
#: Half of the 95 % interval of a median that is known well enough.
_KNOWN_TO = 0.015
#: Of the mean. A drift of 5 % between the thirds moves the window's mean by about 2.5 %, which is
#: more than the 2 % that a comparison takes for no change.
_DRIFT = 0.05
#: Fewer iterations show no drift.
_FEWEST_ITERATIONS = 15
#: Two-sided normal deviates of 95 % and of 97 %: two intervals of the latter that do not meet leave
#: one chance in a hundred.
_OF_PACE, _OF_DRIFT = 1.96, 2.17


def is_warm(times_s: Sequence[float]) -> bool:
    """Whether two of the last three iterations are at the fastest's pace, which falls no more."""
    latest = times_s[-_LATEST:]
    if len(latest) < 3:
        return False
    at_pace = sum(time_s <= (1 + _NEAR) * min(latest) for time_s in latest[-3:])
    return at_pace >= 2 and min(latest[-2:]) >= (1 - _NEAR) * min(latest[:-2])


def transient(times_s: Sequence[float]) -> int:
    """Return how many of the first iterations, at most a third, are of another level than the rest.

    MSER-5 (White et al., WSC 2000): the cut after which the mean of the rest is known best. Single
    slow iterations are winsorised. A cut needs levels over 5 % apart, and a rest that slows down
    no more.
    """
    size = 5 if len(times_s) >= 30 else 1
    means = _batches(times_s, size)
    if len(means) < 6:
        return 0
    middle, total, squares = statistics.median(means), 0.0, 0.0
    errors = {}
    for kept, mean in enumerate(reversed(means), 1):
        total += mean - middle
        squares += (mean - middle) ** 2
        errors[len(means) - kept] = (squares - total**2 / kept) / kept**2
    cut = min(range(len(means) // 3 + 1), key=errors.__getitem__) * size
    if not cut:
        return 0
    rest = times_s[cut:]
    change = abs(statistics.median(times_s[:cut]) / statistics.median(rest) - 1)
    sure = change > max(_NEAR, 2 * (pace_half_width(rest) or 0.0))
    falls = [later[1] < before[1] for before, later in pairwise(_levels(rest))]
    return cut if sure and all(falls) else 0


def _batches(times_s: Sequence[float], size: int) -> list[float]:
    """Means of `size` iterations in a row, slow ones no slower than three deviations, or 10 %."""
    middle = statistics.median(times_s)
    deviation = robust_deviation(times_s)
    most = middle + max(3 * deviation, 0.1 * middle)
    capped = [min(time_s, most) for time_s in times_s]
    return [statistics.fmean(capped[at : at + size]) for at in range(0, len(capped), size)
            if at + size <= len(capped)]  # fmt: skip


def robust_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of normal numbers of the same median absolute deviation."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def _interval(
    times_s: Sequence[float], deviations: float, independent: float
) -> tuple[float, float] | None:
    """Order statistics about the median, as far apart as independent iterations leave it unsure.

    By the normal approximation of the binomial distribution with its continuity correction. Without
    it intervals of 95 % would cover 94 % with five iterations and 93 % with eight.
    """
    count = len(times_s)
    low = math.floor((count - 1 - deviations * count / math.sqrt(independent)) / 2)
    ordered = sorted(times_s)
    return (ordered[low], ordered[-1 - low]) if low >= 0 else None


def _independent(times_s: Sequence[float]) -> float:
    """So many independent iterations would know the median as well.

    By the correlations of their signs about it, up to the first pair of lags that sum to nothing
    (Geyer's initial positive sequence, Statistical Science 7, 1992).
    """
    middle = statistics.median(times_s)
    signs = [int(time_s > middle) - int(time_s < middle) for time_s in times_s]
    squares, correlated = sum(map(abs, signs)) or 1, 1.0
    for lag in range(1, min(len(signs) // 2, 200), 2):
        later = zip(signs, signs[lag:], [*signs[lag + 1 :], 0], strict=False)
        pair = sum(sign * (next_sign + after) for sign, next_sign, after in later) / squares
        if pair <= 0:
            break
        correlated += 2 * pair
    return max(len(signs) / correlated, 1.0)


def pace_half_width(times_s: Sequence[float]) -> float | None:
    """Return half the 95 % interval of the median over the median; None for too few iterations."""
    interval = _interval(times_s, _OF_PACE, _independent(times_s))
    return interval and (interval[1] - interval[0]) / 2 / statistics.median(times_s)


def iterations_needed(times_s: Sequence[float]) -> int:
    """Return how many iterations will know the median to 1.5 %: at most twice these."""
    count, width = len(times_s), pace_half_width(times_s)
    if width is None:
        return 2 * count
    return (
        count if width <= _KNOWN_TO else min(2 * count, math.ceil(count * (width / _KNOWN_TO) ** 2))
    )


def drift(times_s: Sequence[float]) -> float | None:
    """Return by how much the last third is slower than the first, as a share; None if not surely.

    It is over 5 % by the medians, whose 97 % intervals do not meet, and the lower quartiles moved
    too: other work on the machine leaves these where they were.
    """
    if len(times_s) < _FEWEST_ITERATIONS:
        return None
    size = len(times_s) // 3
    first, last = times_s[:size], times_s[-size:]
    change = statistics.median(last) / statistics.median(first) - 1
    floor = sorted(last)[size // 4] / sorted(first)[size // 4] - 1
    intervals = [
        _interval(third, _OF_DRIFT, _independent(_level(third))) for third in (first, last)
    ]
    if (
        abs(change) <= _DRIFT
        or floor * change <= 0
        or abs(floor) <= _DRIFT / 2
        or None in intervals
    ):
        return None
    (_, end), (begin, _) = sorted(interval for interval in intervals if interval)
    return change if end < begin else None


def _level(times_s: Sequence[float]) -> list[float]:
    """The times less a slope through the medians of both halves: a ramp is no correlation."""
    half = len(times_s) // 2
    rise_s = statistics.median(times_s[-half:]) - statistics.median(times_s[:half])
    return [time_s - rise_s * at / half for at, time_s in enumerate(times_s)]


@dataclass(frozen=True)
class WindowClass:
    """What the times of a window do (after Barrett et al., OOPSLA 2017), and after which iteration.

    `before_s` and `after_s` are the levels on both sides of it, of a window that is never steady
    the fastest and the slowest. `drift` is that of the window without its transient.
    """

    kind: Literal["unproven", "flat", "settles", "slows down", "never steady"]
    after: int
    before_s: float
    after_s: float
    drift: float | None

    @property
    def change(self) -> float:
        """The level after, relative to the one before."""
        return self.after_s / self.before_s - 1


def window_class(times_s: Sequence[float]) -> WindowClass:
    """Return the class of a window; of fewer than 15 iterations only a transient is known."""
    cut = transient(times_s)
    steady_s = times_s[cut:]
    starts, levels_s = zip(*_levels(steady_s), strict=True)
    after, before_s, after_s = cut, levels_s[0], levels_s[-1]
    slower = [later > before for before, later in pairwise(levels_s)]
    kind: Literal["unproven", "flat", "settles", "slows down", "never steady"] = "flat"
    if any(slower):
        after = cut + starts[1]
        kind = "slows down" if all(slower) else "never steady"
        if kind == "never steady":
            before_s, after_s = min(levels_s), max(levels_s)
    elif cut:
        kind, before_s = "settles", statistics.median(times_s[:cut])
    elif slower:
        kind, after = "settles", starts[-1]
    elif len(times_s) < _FEWEST_ITERATIONS:
        kind = "unproven"
    drifted = drift(steady_s)
    if kind == "flat" and drifted is not None:
        third = len(steady_s) // 3
        kind, after = "slows down" if drifted > 0 else "settles", len(times_s) - third
        before_s, after_s = (
            statistics.median(third_s) for third_s in (steady_s[:third], steady_s[-third:])
        )
    return WindowClass(kind, after, before_s, after_s, drifted)


#: Of a window's times, for its levels: more points take longer than they tell.
_MOST_POINTS = 100
#: Levels that differ by less are one.
_ONE_LEVEL = 0.03
#: A level of less is a burst.
_LEAST_LEVEL = 0.1
_PENALTY = 4.0


def _levels(times_s: Sequence[float]) -> list[tuple[int, float]]:
    """The first iteration and the median of each level; neighbours differ by over 3 %.

    Least squares by optimal partitioning (Jackson et al., IEEE Signal Processing Letters 12, 2005).
    A level more must explain more than the differences of neighbours let expect.
    """
    size = math.ceil(len(times_s) / _MOST_POINTS)
    count = len(times_s) // size
    least = max(5, math.ceil(_LEAST_LEVEL * count))
    ordered, half = sorted(times_s), least * size // 2
    # half of a level is at least so many iterations: its median is between these two
    if count < 2 * least or ordered[-half] <= (1 + _ONE_LEVEL) * ordered[half - 1]:
        return [(0, statistics.median(times_s))]
    import numpy as np  # takes a tenth of a second

    points = _batches(times_s, size)
    sums = np.concatenate([[0.0], np.cumsum(points)])
    squares = np.concatenate([[0.0], np.cumsum(np.square(points))])
    begins, ends = np.arange(count)[:, None], np.arange(count + 1)
    lengths = np.maximum(ends - begins, 1)
    costs = squares - squares[begins] - (sums - sums[begins]) ** 2 / lengths
    steps = [abs(later - before) for before, later in pairwise(points)] or [0.0]
    noise = max(statistics.median(steps) / 0.954, 1e-4 * statistics.median(points))
    penalty = _PENALTY * math.sqrt(least) * math.log(count + 1) * noise**2
    best, last = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
    best[0] = 0.0
    for end in range(least, count + 1):
        totals = best[: end - least + 1] + costs[: end - least + 1, end]
        last[end] = totals.argmin()
        best[end] = totals[last[end]] + penalty
    edges = [count]
    while edges[0]:
        edges.insert(0, int(last[edges[0]]))
    levels: list[tuple[int, float]] = []
    for begin, end in pairwise(edges):
        level_s = statistics.median(times_s[begin * size : end * size if end < count else None])
        if not levels or abs(level_s / levels[-1][1] - 1) > _ONE_LEVEL:
            levels.append((begin * size, level_s))
    return levels
