"""What hovering says of measured runs: what ran where, the number with its unit, and the runs."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.runs.groups import Group
from analysis.runs.quantities import plus_minus, three_digits

#: Names of runs that have room.
_MAX_NAMES = 4


def group_hover(group: Group, *lines: str) -> tuple[str, ...]:
    """Return the words of a configuration's repeats, with `lines` before its throughput."""
    return hover_of(group.label, group.names, *lines, *group_rate(group))


def group_rate(group: Group) -> tuple[str, ...]:
    """Return the throughput of a configuration's repeats in words; with tokens/s where known."""
    repeats, tokens_per_s = group.repeats(), group.tokens_per_s
    rate = rate_words(repeats.centre, group.rate_unit, repeats.relative_deviation, repeats.count)
    tokens = () if tokens_per_s is None else (f"{three_digits(tokens_per_s)} tokens/s",)
    return rate, *tokens


def hover_of(label: str, runs: Sequence[str], *lines: str) -> tuple[str, ...]:
    """Return `lines` between what was measured and the names of its runs."""
    more = [f"and {len(runs) - _MAX_NAMES} more"] if len(runs) > _MAX_NAMES else []
    return (label, *lines, *(f"run {name}" for name in runs[:_MAX_NAMES]), *more)


def rate_words(
    samples_per_s: float, unit: str, relative_deviation: float | None, count: int
) -> str:
    """Return a rate of that unit as the mean of the repeats, with their SD where it is known."""
    deviation = None if relative_deviation is None else relative_deviation * samples_per_s
    rate = f"{plus_minus(samples_per_s, deviation)} {unit}"
    if count == 1:
        return f"{rate}, measured once"
    return f"{rate}, mean{'' if deviation is None else ' ± SD'} of {count} repeats"
