"""How often intervals hold what they say, on simulated repeats and machines whose truth is known.

    python benchmarks/coverage.py

Repeats scatter by 3 % of a machine's level, or by 0.3 % where machines scatter by 0.6 % (as 39
published machines of one kind do). Prints how many of 4,000 intervals of 95 % hold the truth.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path[0] = str(Path(__file__).parents[1])  # here `analysis` is another benchmark

from analysis.statistics import estimate_ratio, repeats_of  # noqa: E402
from analysis.statistics.repeats import Repeats, joined  # noqa: E402

DRAWS = 4000
REPEATS = 0.03
OF_MACHINES, WITHIN = 0.006, 0.003


def main() -> None:
    """Print a line for each case."""
    rng = np.random.default_rng(1)
    print("repeats of A against B; B scatters half as much, equally, twice as much")
    for ours, theirs in ((2, 2), (2, 3), (2, 5), (2, 10), (3, 3), (3, 5), (3, 10), (5, 5)):
        cells = [_repeats(rng, ours, theirs, scatter) for scatter in (0.5, 1.0, 2.0)]
        print(f"{ours:2} against {theirs:2}: {' / '.join(f'{cell:.1%}' for cell in cells)}")
    print("one machine a side, 5 repeats each")
    inside, kind = _one_machine(rng, 5)
    print(f"ratio of these machines: {inside:.1%}; ratio of their kinds: {kind:.1%}")
    print("several machines a side: ratio of their kinds")
    for machines, count in ((2, 5), (3, 1), (3, 5), (5, 2), (10, 3)):
        print(f"{machines:2} machines, {count} repeats each: {_kinds(rng, machines, count):.1%}")
    print("the same machines on both sides, 3 repeats each; the change differs by 0.2 %")
    for machines in (2, 3, 5, 10):
        print(f"{machines:2} machines: {_same(rng, machines):.1%}")


def _repeats(rng: np.random.Generator, ours: int, theirs: int, scatter: float) -> float:
    a = np.exp(REPEATS * rng.standard_normal((DRAWS, ours))).tolist()
    b = np.exp(REPEATS * scatter * rng.standard_normal((DRAWS, theirs))).tolist()
    return _covered((repeats_of(x), repeats_of(y), 1.0) for x, y in zip(a, b, strict=True))


def _one_machine(rng: np.random.Generator, count: int) -> tuple[float, float]:
    levels = OF_MACHINES * rng.standard_normal((DRAWS, 2))
    sides = [[_machines(rng, own, count) for own in side] for side in levels]
    truth = np.exp(levels[:, 0] - levels[:, 1])
    inside = _covered((a, b, own) for (a, b), own in zip(sides, truth, strict=True))
    return inside, _covered((a, b, 1.0) for a, b in sides)


def _kinds(rng: np.random.Generator, machines: int, count: int) -> float:
    levels = OF_MACHINES * rng.standard_normal((DRAWS, 2, machines))
    sides = (
        (_machines(rng, one, count, "a"), _machines(rng, other, count, "b"))
        for one, other in levels
    )
    return _covered((a, b, 1.0) for a, b in sides)


def _same(rng: np.random.Generator, machines: int) -> float:
    levels = OF_MACHINES * rng.standard_normal((DRAWS, 1, machines)) * [[1.0], [1.0]]
    levels[:, 1] += 0.002 * rng.standard_normal((DRAWS, machines))
    sides = ([_machines(rng, own, 3) for own in one] for one in levels)
    return _covered((a, b, 1.0) for a, b in sides)


def _machines(
    rng: np.random.Generator, levels: NDArray[np.float64], count: int, kind: str = "machine"
) -> Repeats:
    """Repeats of machines at these levels (one number: one machine)."""
    own = np.atleast_1d(levels)
    rates = np.exp(own[:, None] + WITHIN * rng.standard_normal((len(own), count)))
    names = [f"{kind} {place}" for place in range(len(own)) for _ in range(count)]
    return joined([repeats_of([rate]) for rate in rates.flat], names)


def _covered(cases: Iterable[tuple[Repeats, Repeats, float]]) -> float:
    held = []
    for a, b, truth in cases:
        found = estimate_ratio(a, b)
        held.append((found.low or math.inf) <= truth <= (found.high or -math.inf))
    return float(np.mean(held))


if __name__ == "__main__":
    main()
