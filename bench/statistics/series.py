"""What does not belong to the rest: machines among their kind, iterations, and levels of a history.

A level changes where a series falls into two parts whose means differ surely, by Student's t, over
all places that were tried; or, if it does not, at the ends of a stretch that differs from the rest.
Each part is then a series of its own. What rests on a single point is an outlier and no change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.statistics.ratios import LogError, RatioEstimate, estimate_ratio, repeats_of
from bench.statistics.steady_state import robust_deviation

_Numbers = NDArray[np.float64]
#: Below, one machine says too little of another.
FEWEST_MACHINES = 4
_DRAWS = 20_000


def chances_of_outlying(values: Sequence[float], errors: Sequence[float] = ()) -> list[float]:
    """Return for each of `values` the chance that any of so many lies as far from the others.

    How far is counted from the median, in root mean squares of the two thirds of them that are
    nearest to it: a third may be odd without hiding each other. The chance is that of the farthest
    of as many normal numbers, in 20,000 simulated sets; so where nothing is odd any of them is
    below 0.05 in 5 of 100 sets. `errors` are the standard errors of the values: what has a larger
    one may lie farther out. Raises `ValueError` for fewer than four values.
    """
    if len(values) < FEWEST_MACHINES:
        raise ValueError(f"{len(values)} values: at least {FEWEST_MACHINES} are needed")
    series = np.asarray(values, dtype=float)
    deviations = (series - np.median(series)) / _scales(series, np.asarray(errors, dtype=float))
    distances = _distances(deviations[None, :])[0]
    farthest = _farthest_by_chance(len(values))
    beyond = _DRAWS - np.searchsorted(farthest, distances, side="left")
    return [float(chance) for chance in (beyond + 1) / (_DRAWS + 1)]


def _scales(series: _Numbers, errors: _Numbers) -> _Numbers:
    """How far each value is expected from the centre, relative to the others.

    The scatter is that of the values, by their median deviation, less the errors' share in it.
    """
    if not errors.any():
        return np.ones_like(series)
    own = max(robust_deviation(series.tolist()) ** 2 - float(np.median(errors**2)), 0.0)
    scales = np.sqrt(own + errors**2)
    return np.where(scales > 0, scales, 1.0)


def _distances(sets: _Numbers) -> _Numbers:
    deviations = np.abs(sets - np.median(sets, axis=1, keepdims=True))
    nearest = np.sort(deviations, axis=1)[:, : -(-2 * sets.shape[1] // 3)]
    spread = np.sqrt((nearest**2).mean(axis=1, keepdims=True))
    floor = 1e-9 * deviations.max(axis=1, keepdims=True)  # all but a few are equal
    distances: _Numbers = deviations / np.maximum(spread, np.where(floor > 0, floor, 1.0))
    return distances


@lru_cache
def _farthest_by_chance(count: int) -> _Numbers:
    """The largest distance in each of the simulated sets, in order; the same in each call."""
    rng = np.random.default_rng(count)
    largest: _Numbers = np.sort(_distances(rng.standard_normal((_DRAWS, count))).max(axis=1))
    return largest


#: Robust deviations from the median; of normal noise one iteration in 1.7 million.
_OUTLIER_DEVIATIONS = 5.0
#: Times read from a clock repeat exactly; a spread of 0 would make every other one an outlier.
_LEAST_SPREAD = 1e-3


def find_outliers(times: Sequence[float] | _Numbers) -> tuple[int, ...]:
    """Return the indices over five robust deviations from the median, of the slow ones first."""
    series = np.asarray(times, dtype=float)
    median = float(np.median(series))
    limit = _OUTLIER_DEVIATIONS * max(robust_deviation(series.tolist()), _LEAST_SPREAD * median)
    slow, fast = np.flatnonzero(series > median + limit), np.flatnonzero(series < median - limit)
    return (*map(int, slow), *map(int, fast))


_SHORTEST_LEVEL = 2  # one point alone may be an outlier
#: Below, there is no room for two levels and their scatter.
FEWEST_POINTS = 5
_MOST_ENDS = 120  # of stretches that are tried in a long piece
#: Twice the logarithm of the likelihood that an index may be worse than the best one. The limit is
#: of small changes (Hinkley, Biometrika 57, 1970: the larger of two maxima of random walks, each
#: exponential): (1 - exp(-x / 2))^2 = 0.95.
_INDEX_LIMIT = 7.35


@dataclass(frozen=True)
class LevelChange:
    """The new level begins at point `index`, surely at one of `first` to `last`.

    `estimate` is the new level over the old one.
    """

    index: int
    first: int
    last: int
    estimate: RatioEstimate
    p_value: float


def find_changes(values: Sequence[float], alpha: float = 0.05) -> list[LevelChange]:
    """Return the changes in the level of positive `values` in their order, first to last.

    Levels are geometric means, of two points at least. Of series of independent points without a
    change a share of at most `alpha` has one all the same. None for fewer than five points.
    """
    logs = np.log(np.asarray(values, dtype=float))
    edges = [0, *_cuts(logs, 0, len(logs), alpha), len(logs)]
    changes = (_change(logs, start, end) for start, end in zip(edges, edges[2:]))  # noqa: B905
    return [change for change in changes if change.p_value <= alpha]


def _cuts(logs: _Numbers, start: int, end: int, alpha: float) -> list[int]:
    """The places where a piece splits; each part has its share of the chance of an alarm."""
    if end - start < FEWEST_POINTS:
        return []
    change = _change(logs, start, end)
    cuts = [change.index] if change.p_value <= alpha else _stretch(logs, start, end, alpha)
    inner = list(cuts)
    for begin, stop in pairwise([start, *cuts, end] if cuts else []):
        inner += _cuts(logs, begin, stop, alpha * (stop - begin) / (end - start))
    return sorted(inner)


def _stretch(logs: _Numbers, start: int, end: int, alpha: float) -> list[int]:
    """The ends of the stretch that differs most from the rest on both of its sides, if surely."""
    piece, count = logs[start:end], end - start
    step = math.ceil(count / _MOST_ENDS)
    ends = np.arange(_SHORTEST_LEVEL, count - _SHORTEST_LEVEL + 1, step)
    firsts, lasts = (ends[index] for index in np.triu_indices(len(ends), _SHORTEST_LEVEL))
    if not len(firsts):
        return []
    lengths, sums = lasts - firsts, np.append(0, np.cumsum(piece - piece.mean()))
    explained = (sums[lasts] - sums[firsts]) ** 2 * (1 / lengths + 1 / (count - lengths))
    first, last = (int(ends[np.argmax(explained)]) for ends in (firsts, lasts))
    p_value = len(firsts) * _p_value(piece[first:last], np.delete(piece, slice(first, last)))
    return [start + first, start + last] if p_value <= alpha else []


def _change(logs: _Numbers, start: int, end: int) -> LevelChange:
    """The change in a piece where two levels leave least, with its p-value among all places."""
    piece = logs[start:end]
    cuts = range(_SHORTEST_LEVEL, len(piece) - _SHORTEST_LEVEL + 1)
    left = np.array([_squares(piece[:cut]) + _squares(piece[cut:]) for cut in cuts])
    variance = max(float(left.min()) / max(len(piece) - 2, 1), 1e-300)
    near = start + np.array(cuts)[left - left.min() <= _INDEX_LIMIT * variance]
    best = cuts[int(np.argmin(left))]
    before, after = piece[:best], piece[best:]
    old, new = (repeats_of(np.exp(level).tolist()) for level in (before, after))
    p_value = min(1.0, len(cuts) * _p_value(before, after))
    return LevelChange(start + best, int(near[0]), int(near[-1]), estimate_ratio(new, old), p_value)


def _squares(level: _Numbers) -> float:
    return float(len(level) * level.var())


def _p_value(before: _Numbers, after: _Numbers) -> float:
    """Of Student's t, also without the point of either level that is farthest off."""
    without = [
        np.delete(level, np.argmax(np.abs(level - other.mean())))
        for level, other in ((before, after), (after, before))
    ]
    pairs = ((before, after), (without[0], after), (before, without[1]))
    return max(_student(*pair) for pair in pairs)


def _student(before: _Numbers, after: _Numbers) -> float:
    """Two-sided, with a common scatter."""
    degrees = len(before) + len(after) - 2
    variance = (_squares(before) + _squares(after)) / degrees
    error = LogError(math.sqrt(variance * (1 / len(before) + 1 / len(after))), degrees)
    return min(1.0, 2 * error.p_value(abs(float(after.mean() - before.mean()))))
