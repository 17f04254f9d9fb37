"""What the intervals of a comparison speak of: these runs, this machine, or machines of a kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from analysis.comparison.judgement import Comparison
from analysis.statistics import Covers

_WORDS: dict[Covers, str] = {
    "these runs": "are of these runs alone: not all of their records say which machine ran",
    "this machine": "are of repeats on one machine, and say nothing of others of its kind",
    "this kind of machine": "are of machines of this kind",
}


def machine_counts(one: Comparison) -> tuple[int | None, int | None]:
    """Return how many machines ran A and B, None where some record does not say."""
    a, b = (len(side.repeats(one.metric.name).machines) or None for side in (one.a, one.b))
    return a, b


def covered(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a line for each scope that intervals of `comparisons` have, the widest last."""
    rated = [one for one in comparisons if one.estimate.low is not None]
    for scope, words in _WORDS.items():
        found = [one for one in rated if one.estimate.covers == scope]
        if not found:
            continue
        some = "the intervals" if len(found) == len(rated) else f"{len(found)} of the intervals"
        machines = [machine_counts(one) for one in found]
        a, b = (_span(count for count in side if count) for side in zip(*machines, strict=True))
        counts = f" (A ran on {a}, B on {b})" if a and b and {a, b} != {"1"} else ""
        yield f"{some} {words}{counts}"


def _span(counts: Iterable[int]) -> str:
    known = sorted(set(counts))
    return "" if not known else f"{known[0]}" + (f" to {known[-1]}" if len(known) > 1 else "")
