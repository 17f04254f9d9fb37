"""Where the level of a series changes, with a stated chance of a false alarm.

Circular binary segmentation (Olshen, Venkatraman, Lucy and Wigler, Biostatistics 5, 2004): of all
stretches of a piece that one is taken whose mean differs most from the rest, by Student's t, if the
largest t of noise is seldom as large. Its ends may be changes, and each part is a piece of its own,
with its share of the chance. What rests on a single point of a level is an outlier and no change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analysis.statistics.ratios import RatioEstimate, estimate_ratio
from analysis.statistics.repeats import LogError, repeats_of

_Numbers = NDArray[np.float64]
_Indices = NDArray[np.int64]
_SHORTEST_LEVEL = 2  # one point alone may be an outlier
#: Below, there is no room for two levels and their scatter.
FEWEST = 5
_DRAWS = 2000
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
    change a share of `alpha` has one all the same. None for fewer than five points.
    """
    logs = np.log(np.asarray(values, dtype=float))
    cuts = _split(logs, alpha)
    found: list[LevelChange] = []
    for _ in range(2):  # then between the levels that are left
        edges = [0, *cuts, len(logs)]
        found = [_change(logs, start, end) for start, end in zip(edges, edges[2:])]  # noqa: B905
        found = [one for one in found if one.p_value <= alpha]
        cuts = [one.index for one in found]
    return found


def _split(piece: _Numbers, alpha: float) -> list[int]:
    """The ends of stretches whose means differ from the rest of the piece that they lie in."""
    count = len(piece)
    if count < FEWEST:
        return []
    firsts, lasts = _stretches(count)
    found = _statistics(piece[None, :])[0]
    best = int(np.argmax(found))
    if _tried(count) * LogError(1.0, count - 2).p_value(float(found[best])) > alpha:
        return []
    cuts = {int(firsts[best]), int(lasts[best])} - {0, count}
    for start, end in pairwise([0, *sorted(cuts), count]):
        cuts.update(start + cut for cut in _split(piece[start:end], alpha * (end - start) / count))
    return sorted(cuts)


@lru_cache(maxsize=64)
def _stretches(count: int) -> tuple[_Indices, _Indices]:
    """First and last (exclusive) of each stretch; no level that it leaves is too short."""
    inner = range(_SHORTEST_LEVEL, count - _SHORTEST_LEVEL + 1)
    ends = np.array([0, *inner[:: math.ceil(count / _MOST_ENDS)], count])
    firsts, lasts = (each.ravel() for each in np.meshgrid(ends, ends, indexing="ij"))
    kept = (lasts - firsts >= _SHORTEST_LEVEL) & (lasts - firsts < count)
    return firsts[kept], lasts[kept]


def _statistics(pieces: _Numbers) -> _Numbers:
    """Student's t of every stretch against the rest of its piece; a piece a row."""
    explained, total = _squares(pieces, *_stretches(pieces.shape[1]))
    left = np.maximum(total - explained, 1e-12 * total + 1e-300)
    found: _Numbers = np.sqrt(explained * (pieces.shape[1] - 2) / left)
    return found


def _squares(pieces: _Numbers, firsts: _Indices, lasts: _Indices) -> tuple[_Numbers, _Numbers]:
    """The sum of squares that each stretch and its rest explain as two levels, and the total."""
    count, lengths = pieces.shape[1], lasts - firsts
    centred = pieces - pieces.mean(axis=1, keepdims=True)
    sums = np.pad(centred.cumsum(axis=1), ((0, 0), (1, 0)))
    explained = (sums[:, lasts] - sums[:, firsts]) ** 2 * (1 / lengths + 1 / (count - lengths))
    return explained, (centred**2).sum(axis=1, keepdims=True)


@lru_cache(maxsize=256)
def _tried(count: int) -> float:
    """How many independent tests give the largest t of noise its 95th percentile."""
    rng = np.random.default_rng(count)
    rows = max(1, 2_000_000 // len(_stretches(count)[0]))
    largest = [
        _statistics(rng.standard_normal((min(rows, _DRAWS - done), count))).max(axis=1)
        for done in range(0, _DRAWS, rows)
    ]
    limit = float(np.quantile(np.concatenate(largest), 0.95))
    return 0.05 / LogError(1.0, count - 2).p_value(limit)


def _change(logs: _Numbers, start: int, end: int) -> LevelChange:
    """The change in a piece of two levels, where these leave least."""
    piece = logs[start:end]
    cuts = np.arange(_SHORTEST_LEVEL, len(piece) - _SHORTEST_LEVEL + 1)
    explained, total = _squares(piece[None, :], np.zeros_like(cuts), cuts)
    left = (total - explained)[0]
    best = int(cuts[np.argmin(left)])
    variance = max(float(left.min()) / max(len(piece) - 2, 1), 1e-300)
    near = start + cuts[left - left.min() <= _INDEX_LIMIT * variance]
    before, after = piece[:best], piece[best:]
    old, new = (repeats_of(np.exp(level).tolist()) for level in (before, after))
    p_value = min(1.0, len(cuts) * _p_value(before, after))
    return LevelChange(start + best, int(near[0]), int(near[-1]), estimate_ratio(new, old), p_value)


def _p_value(before: _Numbers, after: _Numbers) -> float:
    """The p-value of a change, also without the point of either level that is farthest off."""
    without = [
        np.delete(level, np.argmax(np.abs(level - other.mean())))
        for level, other in ((before, after), (after, before))
    ]
    pairs = ((before, after), (without[0], after), (before, without[1]))
    return max(_student(*pair) for pair in pairs)


def _student(before: _Numbers, after: _Numbers) -> float:
    """Two-sided, of Student's t with a common scatter."""
    degrees = len(before) + len(after) - 2
    left = len(before) * before.var() + len(after) * after.var()
    error = LogError(math.sqrt(left / degrees * (1 / len(before) + 1 / len(after))), degrees)
    return min(1.0, 2 * error.p_value(abs(float(after.mean() - before.mean()))))
