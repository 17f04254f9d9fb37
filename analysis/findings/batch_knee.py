"""Where a larger batch stops paying: the smallest batch within 5 % of the best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from analysis.findings.finding import ReportFinding, names_of, rate_of
from analysis.findings.memory_spill import before_cliff
from analysis.runs.groups import Group, batch_curves
from analysis.runs.placed import Run
from analysis.runs.quantities import percent, three_digits

KIND = "batch knee"
#: A batch this near to the best has nearly all there is to gain.
NEAR_BEST = 0.95
#: A doubling of the batch can at most double images/s; more is noise, or another fault.
_MOST_GAIN = 1.05
#: Two sizes are a line; a knee needs a bend.
_FEWEST = 3


@dataclass(frozen=True)
class Knee:
    """A batch curve before any spill: its best, its knee, and the gain of each step upwards.

    `gains` are per doubling of the batch, as shares, beside the batch that they lead to. Without
    a knee (`knee` None) the largest batch still gains more than 5 % a doubling.
    """

    curve: tuple[Group, ...]
    best: Group
    knee: Group | None
    gains: tuple[float, ...]


def knee_of(curve: Sequence[Group]) -> Knee | None:
    """Return the knee of a curve (smallest batch first).

    None for fewer than three sizes, and for a curve that no device can have.
    """
    sound = before_cliff(curve)
    if len(sound) < _FEWEST:
        return None
    gains = tuple(gain_per_doubling(small, large) for small, large in pairwise(sound))
    if max(gains) > _MOST_GAIN:
        return None
    best = max(sound, key=lambda group: group.throughput_images_per_s)
    near = NEAR_BEST * best.throughput_images_per_s
    knee = next(group for group in sound if group.throughput_images_per_s >= near)
    still_rising = best is sound[-1] and gains[-1] > 1 - NEAR_BEST
    return Knee(tuple(sound), best, None if still_rising else knee, gains)


def gain_per_doubling(small: Group, large: Group) -> float:
    """Return the relative gain in images/s that each doubling between the two batches gave."""
    ratio = large.throughput_images_per_s / small.throughput_images_per_s
    doublings = math.log2((large.batch_size or 0) / (small.batch_size or 1))
    return float(ratio ** (1 / doublings)) - 1


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each curve of three batch sizes or more that did not spill."""
    for curve in batch_curves(runs):
        knee = knee_of(curve)
        if knee is not None:
            yield ReportFinding(
                kind=KIND,
                headline=_headline(knee),
                evidence=(
                    *(f"batch {group.batch_size}: {rate_of(group)}" for group in knee.curve),
                    *(
                        f"{small.batch_size} to {large.batch_size}: {percent_change(gain)} "
                        "images/s a doubling"
                        for (small, large), gain in zip(
                            pairwise(knee.curve), knee.gains, strict=True
                        )
                    ),
                ),
                runs=names_of(knee.curve),
            )


def percent_change(share: float) -> str:
    """Format a relative change with its sign."""
    return f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def _headline(knee: Knee) -> str:
    first, last = knee.curve[0].first, knee.curve[-1]
    what = f"{first.env}, {first.arch} {first.precision}"
    if knee.knee is None:
        return (
            f"{what}: no knee up to batch {last.batch_size}; the last doubling still gave "
            f"{percent_change(knee.gains[-1])}, so a larger batch is worth a try."
        )
    if knee.knee is knee.curve[0]:
        return (
            f"{what}: the smallest batch, {knee.knee.batch_size}, is within 5 % of the best "
            f"({three_digits(knee.best.throughput_images_per_s)} images/s at "
            f"{knee.best.batch_size}): a larger one gains less, the knee is at or below it."
        )
    return (
        f"{what}: the knee is at batch {knee.knee.batch_size}; beyond it a doubling gives "
        f"{percent_change(knee.gains[knee.curve.index(knee.knee)])}."
        if knee.knee is not last
        else f"{what}: the knee is at the largest batch, {last.batch_size}."
    )
