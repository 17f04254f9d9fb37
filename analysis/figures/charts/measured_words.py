"""What hovering says of measured runs: what ran where, the number with its unit, and the runs."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.runs.groups import Group
from analysis.runs.quantities import plus_minus

#: Names of runs that have room.
_MAX_NAMES = 4


def group_hover(group: Group, *lines: str) -> tuple[str, ...]:
    """Return the words of a configuration's repeats, with `lines` before its throughput."""
    repeats = group.repeats()
    rate = rate_words(repeats.centre, repeats.relative_deviation, repeats.count)
    return hover_of(group.label, group.names, *lines, rate)


def hover_of(label: str, runs: Sequence[str], *lines: str) -> tuple[str, ...]:
    """Return `lines` between what was measured and the names of its runs."""
    more = [f"and {len(runs) - _MAX_NAMES} more"] if len(runs) > _MAX_NAMES else []
    return (label, *lines, *(f"run {name}" for name in runs[:_MAX_NAMES]), *more)


def rate_words(images_per_s: float, relative_deviation: float | None, count: int) -> str:
    """Return images/s as the mean of the repeats, with their SD where it is known."""
    deviation = None if relative_deviation is None else relative_deviation * images_per_s
    rate = f"{plus_minus(images_per_s, deviation)} images/s"
    if count == 1:
        return f"{rate}, measured once"
    return f"{rate}, mean{'' if deviation is None else ' ± SD'} of {count} repeats"
