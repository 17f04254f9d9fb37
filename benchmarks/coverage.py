"""How often intervals and tests hold what they say, on simulated runs whose truth is known.

    python benchmarks/coverage.py             # intervals of repeats and of machines
    python benchmarks/coverage.py --odd       # machines that are called odd
    python benchmarks/coverage.py --trend     # changes that histories are said to have

Repeats scatter by 3 % of a machine's level, or by 0.3 % where machines scatter by 0.6 % (as 39
published machines of one kind do). Prints how many of 4,000 intervals of 95 % hold the truth.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path[0] = str(Path(__file__).parents[1])  # here `analysis` is another benchmark

from analysis.statistics import estimate_ratio, repeats_of  # noqa: E402
from analysis.statistics.change_points import Change, find_changes  # noqa: E402
from analysis.statistics.outlying import chances_of_outlying  # noqa: E402
from analysis.statistics.repeats import Repeats, joined  # noqa: E402

DRAWS = 4000
REPEATS = 0.03
OF_MACHINES, WITHIN = 0.006, 0.003


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--trend", action="store_true")
    asked = parser.parse_args()
    rng = np.random.default_rng(1)
    if asked.odd:
        _odd(rng)
    elif asked.trend:
        _histories(rng)
    else:
        _intervals(rng)


def _intervals(rng: np.random.Generator) -> None:
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


def _odd(rng: np.random.Generator) -> None:
    """Kinds of machines in which none is odd, and in which one is six deviations off."""
    print("machines: called odd by chance; with unequal repeats; tails of t with 5 degrees; found")
    for machines in (4, 8, 15, 39):
        alike = rng.standard_normal((DRAWS // 2, machines))
        counts = rng.integers(1, 6, alike.shape)
        errors = 3 / np.sqrt(counts)
        unequal = alike + errors * rng.standard_normal(alike.shape)
        tails = rng.standard_t(5, alike.shape)
        one = alike + 6 * (np.arange(machines) == 0)
        rates = [
            np.mean([min(chances_of_outlying(row)) <= 0.05 for row in alike]),
            np.mean(
                [
                    min(chances_of_outlying(row, own)) <= 0.05
                    for row, own in zip(unequal, errors, strict=True)
                ]
            ),
            np.mean([min(chances_of_outlying(row)) <= 0.05 for row in tails]),
            np.mean([chances_of_outlying(row)[0] <= 0.05 for row in one]),
        ]
        print(f"{machines:2}: {' / '.join(f'{rate:.1%}' for rate in rates)}")


def _histories(rng: np.random.Generator) -> None:
    """Histories of 1 % noise without a change, and with one in the middle."""
    print("points: false alarms, independent; correlated by 0.3; tails of t with 4 degrees")
    print("  a change of two and of four deviations: found, its place covered, its size covered")
    for points in (6, 12, 30, 100):
        draws = DRAWS // 8
        noise = rng.standard_normal((draws, points + 50))
        correlated = np.zeros_like(noise)
        for at in range(1, noise.shape[1]):
            correlated[:, at] = 0.3 * correlated[:, at - 1] + noise[:, at]
        alarms = [
            np.mean([bool(_changes(row)) for row in rows])
            for rows in (noise[:, 50:], correlated[:, 50:], rng.standard_t(4, (draws, points)))
        ]
        print(f"{points:3}: {' / '.join(f'{alarm:.1%}' for alarm in alarms)}")
        for size in (2, 4):
            stepped = noise[:, 50:] - size * (np.arange(points) >= points // 2)
            single = [one for row in stepped if len(one := _changes(row)) == 1]
            place = np.mean([one.first <= points // 2 <= one.last for (one,) in single])
            truth = math.exp(-0.01 * size)
            held = np.mean(
                [(one.estimate.low or 0) <= truth <= (one.estimate.high or 0) for (one,) in single]
            )
            print(f"     {size}: {len(single) / draws:.1%} / {place:.1%} / {held:.1%}")


def _changes(noise: NDArray[np.float64]) -> list[Change]:
    return find_changes(np.exp(0.01 * noise).tolist())


if __name__ == "__main__":
    main()
