"""Which of several numbers do not belong to the others: machines of a kind, and iterations.

Of machines with a stated chance of a false alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: Below, one number says too little of another.
FEWEST = 4
_DRAWS = 20_000
_Numbers = NDArray[np.float64]


def chances_of_outlying(values: Sequence[float], errors: Sequence[float] = ()) -> list[float]:
    """Return for each of `values` the chance that any of so many lies as far from the others.

    How far is counted from the median, in root mean squares of the two thirds of them that are
    nearest to it: a third may be odd without hiding each other. The chance is that of the farthest
    of as many normal numbers, in 20,000 simulated sets; so where nothing is odd any of them is
    below 0.05 in 5 of 100 sets. `errors` are the standard errors of the values: what has a larger
    one may lie farther out. Raises `ValueError` for fewer than four values.
    """
    if len(values) < FEWEST:
        raise ValueError(f"{len(values)} values: at least {FEWEST} are needed")
    series = np.asarray(values, dtype=float)
    deviations = (series - np.median(series)) / _scales(series, np.asarray(errors, dtype=float))
    found = _distances(deviations[None, :])[0]
    farthest = _farthest_by_chance(len(values))
    beyond = _DRAWS - np.searchsorted(farthest, found, side="left")
    return [float(one) for one in (beyond + 1) / (_DRAWS + 1)]


def _scales(series: _Numbers, errors: _Numbers) -> _Numbers:
    """How far each value is expected from the centre, relative to the others.

    The scatter is that of the values, by their median deviation, less the errors' share in it.
    """
    if not errors.any():
        return np.ones_like(series)
    own = max(_robust_deviation(series) ** 2 - float(np.median(errors**2)), 0.0)
    scales = np.sqrt(own + errors**2)
    return np.where(scales > 0, scales, 1.0)


def _distances(sets: _Numbers) -> _Numbers:
    """How far each value of each row is from the row's centre."""
    deviations = np.abs(sets - np.median(sets, axis=1, keepdims=True))
    nearest = np.sort(deviations, axis=1)[:, : -(-2 * sets.shape[1] // 3)]
    spread = np.sqrt((nearest**2).mean(axis=1, keepdims=True))
    floor = 1e-9 * deviations.max(axis=1, keepdims=True)  # all but a few are equal
    found: _Numbers = deviations / np.maximum(spread, np.where(floor > 0, floor, 1.0))
    return found


@lru_cache
def _farthest_by_chance(count: int) -> _Numbers:
    """The largest distance in each of the simulated sets, in order; the same in each call."""
    rng = np.random.default_rng(count)
    found: _Numbers = np.sort(_distances(rng.standard_normal((_DRAWS, count))).max(axis=1))
    return found


#: Robust deviations from the median; of normal noise one iteration in 1.7 million.
_OUTLIER_DEVIATIONS = 5.0
#: Times read from a clock repeat exactly; a spread of 0 would make every other one an outlier.
_LEAST_SPREAD = 1e-3


def find_outliers(times: Sequence[float] | _Numbers) -> tuple[int, ...]:
    """Return the indices over five robust deviations from the median, of the slow ones first."""
    series = np.asarray(times, dtype=float)
    median = float(np.median(series))
    limit = _OUTLIER_DEVIATIONS * max(_robust_deviation(series), _LEAST_SPREAD * median)
    slow, fast = np.flatnonzero(series > median + limit), np.flatnonzero(series < median - limit)
    return (*map(int, slow), *map(int, fast))


def _robust_deviation(series: _Numbers) -> float:
    """The standard deviation of a normal distribution of the same median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(series - np.median(series))))
