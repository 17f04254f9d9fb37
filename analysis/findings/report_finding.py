"""A finding of a report: a sentence, the numbers that it rests on, and the runs that it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.runs.groups import Group
from analysis.runs.quantities import interval, percent, ratio_digits, three_digits
from analysis.statistics import RatioEstimate


@dataclass(frozen=True)
class ReportFinding:
    """One thing that the runs show. `kind` is a short name, `runs` are the ids of all it cites."""

    kind: str
    headline: str
    evidence: tuple[str, ...]
    runs: tuple[str, ...]
    advice: str | None = None


def rate_of(group: Group) -> str:
    """Format a group's samples/s, with the deviation of its repeats where there are any."""
    repeats, unit = group.repeats(), group.rate_unit
    deviation = repeats.relative_deviation
    if deviation is None:
        known = "" if repeats.count == 1 else f" (mean of {repeats.count})"
        return f"{three_digits(repeats.centre)} {unit}{known}"
    spread = f"SD {percent(deviation)}, {repeats.count} repeats"
    return f"{three_digits(repeats.centre)} {unit} ({spread})"


def ratio_of(estimate: RatioEstimate) -> str:
    """Format a ratio with its interval, or say that there is none."""
    if estimate.low is None or estimate.high is None:
        return f"{ratio_digits(estimate.ratio)}x (single runs, no interval)"
    return f"{ratio_digits(estimate.ratio)}x (95 %: {interval(estimate.low, estimate.high)})"


def names_of(groups: Iterable[Group]) -> tuple[str, ...]:
    """Return the ids of all runs of `groups`, each once."""
    return tuple(dict.fromkeys(name for group in groups for name in group.names))
