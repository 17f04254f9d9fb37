"""Where the level of a series changes, with a stated chance of a false alarm.

Binary segmentation that also sees a stretch in the middle of a piece (Olshen, Venkatraman, Lucy
and Wigler, Biostatistics 5, 2004): of all stretches of a piece that one is taken whose mean differs
most from the rest of the piece, by Student's t. It counts if the largest t of so many stretches of
normal noise is seldom as large. Then its ends are changes, and each part is a piece of its own,
with its share of the chance. What rests on a single point of a level is an outlier and no change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.statistics.ratios import RatioEstimate, estimate_ratio
from analysis.statistics.repeats import repeats_of
from analysis.statistics.student import chance_below

_Numbers = NDArray[np.float64]
#: A level needs so many points: one alone may be an outlier.
SHORTEST = 2
#: Below, there is no room for two levels and their scatter.
FEWEST = 5
_DRAWS = 2000
#: Ends of stretches that are tried in a long piece; the place is then refined.
_MOST_ENDS = 120
#: Twice the logarithm of the likelihood that a place may be worse than the best one. The limit is
#: of small changes (Hinkley, Biometrika 57, 1970: the larger of two maxima of random walks, each
#: exponential): (1 - exp(-x / 2))^2 = 0.95.
_PLACE_LIMIT = 7.35


@dataclass(frozen=True)
class Change:
    """The level changes between points `place - 1` and `place`; surely from `first` to `last`.

    `estimate` is the new level over the old one, `chance` its p-value.
    """

    place: int
    first: int
    last: int
    estimate: RatioEstimate
    chance: float


def find_changes(values: Sequence[float], alpha: float = 0.05) -> list[Change]:
    """Return the changes in the level of positive `values` in their order, first to last.

    Levels are geometric means, of two points at least. Of series of independent points without a
    change a share of `alpha` has one all the same. None for fewer than five points.
    """
    logs = np.log(np.asarray(values, dtype=float))
    places = _split(logs, 0, len(logs), alpha)
    for _ in range(2):  # an end may move once its neighbour has
        places = _refined(logs, places)
        places = _kept(logs, places, alpha)
    edges = [0, *places, len(logs)]
    return [_change(values, logs, edges[number : number + 3]) for number in range(len(places))]


def _split(logs: _Numbers, start: int, end: int, alpha: float) -> list[int]:
    piece = logs[start:end]
    if len(piece) < FEWEST:
        return []
    statistic, first, last = _strangest(piece)
    if _chance(statistic, len(piece)) > alpha:
        return []
    inner = [start + cut for cut in (first, last) if 0 < cut < len(piece)]
    edges = [start, *inner, end]
    found = set(inner)
    for one, other in pairwise(edges):
        found.update(_split(logs, one, other, alpha * (other - one) / len(piece)))
    return sorted(found)


class _Stretch(NamedTuple):
    statistic: float
    first: int
    last: int


def _strangest(piece: _Numbers) -> _Stretch:
    """The stretch of a piece whose mean differs most from the rest, by Student's t."""
    firsts, lasts, _ = _stretches(len(piece))
    found = _statistics(piece[None, :])[0]
    best = int(np.argmax(found))
    return _Stretch(float(found[best]), int(firsts[best]), int(lasts[best]))


@lru_cache(maxsize=64)
def _stretches(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], _Numbers]:
    """First and last (exclusive) of each stretch, and its length.

    It and what is left on either side of it are no shorter than a level is.
    """
    step = max(1, math.ceil(count / _MOST_ENDS))
    ends = sorted({*range(0, count, step), count} - set(range(1, SHORTEST)))
    ends = [one for one in ends if one in (0, count) or SHORTEST <= one <= count - SHORTEST]
    pairs = np.array(
        [
            (first, last)
            for first in ends
            for last in ends
            if SHORTEST <= last - first < count
        ]
    )  # fmt: skip
    firsts, lasts = pairs[:, 0], pairs[:, 1]
    return firsts, lasts, (lasts - firsts).astype(float)


def _statistics(pieces: _Numbers) -> _Numbers:
    """Student's t of every stretch against the rest of its piece; a piece a row."""
    count = pieces.shape[1]
    firsts, lasts, lengths = _stretches(count)
    centred = pieces - pieces.mean(axis=1, keepdims=True)
    sums = np.concatenate([np.zeros((len(pieces), 1)), centred.cumsum(axis=1)], axis=1)
    inside = sums[:, lasts] - sums[:, firsts]
    explained = inside**2 * (1 / lengths + 1 / (count - lengths))
    total = (centred**2).sum(axis=1, keepdims=True)
    left = np.maximum(total - explained, 1e-12 * total + 1e-300)
    found: _Numbers = np.sqrt(explained * (count - 2) / left)
    return found


def _chance(statistic: float, count: int) -> float:
    """The chance of so large a t somewhere in a piece of noise.

    As if so many independent stretches had been tried as give the largest t of simulated noise its
    95th percentile.
    """
    return min(1.0, _tried(count) * 2 * chance_below(-statistic, count - 2))


@lru_cache(maxsize=256)
def _tried(count: int) -> float:
    rng = np.random.default_rng(count)
    rows = max(1, 2_000_000 // len(_stretches(count)[0]))
    largest = [
        _statistics(rng.standard_normal((min(rows, _DRAWS - done), count))).max(axis=1)
        for done in range(0, _DRAWS, rows)
    ]
    limit = float(np.quantile(np.concatenate(largest), 0.95))
    return 0.05 / (2 * chance_below(-limit, count - 2))


def _refined(logs: _Numbers, places: Sequence[int]) -> list[int]:
    """Each place where the levels on both sides leave least, its neighbours as they are."""
    found = list(places)
    for number in range(len(found)):
        edges = [0, *found, len(logs)]
        piece = logs[edges[number] : edges[number + 2]]
        found[number] = edges[number] + int(np.argmin(_left_over(piece)))
    return found


def _left_over(piece: _Numbers) -> _Numbers:
    """The sum of squares about two levels, by the place of the change; infinite at no place."""
    count = len(piece)
    cuts = np.arange(SHORTEST, count - SHORTEST + 1)
    sums = np.concatenate([[0.0], (piece - piece.mean()).cumsum()])
    found = np.full(count + 1, np.inf)
    total = float(((piece - piece.mean()) ** 2).sum())
    found[cuts] = total - sums[cuts] ** 2 * (1 / cuts + 1 / (count - cuts))
    return found


def _kept(logs: _Numbers, places: Sequence[int], alpha: float) -> list[int]:
    """The places at which two neighbouring levels differ, the least sure taken out first."""
    found = list(places)
    while found:
        edges = [0, *found, len(logs)]
        chances = [_single(logs[edges[n] : edges[n + 2]], edges[n + 1] - edges[n])
                   for n in range(len(found))]  # fmt: skip
        worst = int(np.argmax(chances))
        if chances[worst] <= alpha:
            break
        del found[worst]
    return found


def _single(piece: _Numbers, cut: int) -> float:
    """The p-value of one change, among as many places as its piece has.

    Also without the one point of either level that is farthest from the other level.
    """
    before, after = piece[:cut], piece[cut:]
    places = len(piece) - 2 * SHORTEST + 1
    without = [
        (_without_farthest(before, after), after),
        (before, _without_farthest(after, before)),
    ]
    return min(1.0, places * max(_p_value(*sides) for sides in ((before, after), *without)))


def _without_farthest(level: _Numbers, other: _Numbers) -> _Numbers:
    found: _Numbers = np.delete(level, int(np.argmax(np.abs(level - other.mean()))))
    return found


def _p_value(before: _Numbers, after: _Numbers) -> float:
    """Of Student's t with a common scatter, two-sided."""
    difference = abs(float(after.mean() - before.mean()))
    degrees = len(before) + len(after) - 2
    left = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    error = math.sqrt(left / degrees * (1 / len(before) + 1 / len(after)))
    if error == 0:
        return 0.0 if difference > 0 else 1.0
    return 2 * chance_below(-difference / error, degrees)


def _change(values: Sequence[float], logs: _Numbers, edges: Sequence[int]) -> Change:
    start, place, end = edges
    piece = logs[start:end]
    left = _left_over(piece)
    best = float(left[place - start])
    variance = best / max(len(piece) - 2, 1)
    near = np.flatnonzero(left - best <= _PLACE_LIMIT * max(variance, 1e-300))
    before, after = list(values[start:place]), list(values[place:end])
    return Change(
        place=place,
        first=start + int(near[0]),
        last=start + int(near[-1]),
        estimate=estimate_ratio(repeats_of(after), repeats_of(before)),
        chance=_single(piece, place - start),
    )
