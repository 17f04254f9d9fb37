"""Runs by their numbers in a report: table 1 says which number is which run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from analysis.runs.placed import Run, recorded


@dataclass(frozen=True)
class RunNumbers:
    """Number of each run by its name (a run id, or a record's)."""

    by_name: dict[str, int] = field(default_factory=dict)

    def words(self, names: Iterable[str]) -> str:
        """Return `1 to 3, 7` for the runs of these names."""
        numbers = sorted({self.by_name[name] for name in names if name in self.by_name})
        spans: list[list[int]] = []
        for number in numbers:
            if spans and number == spans[-1][-1] + 1:
                spans[-1].append(number)
            else:
                spans.append([number])
        return ", ".join(_span(span) for span in spans)


def number_runs(runs: Sequence[Run]) -> RunNumbers:
    """Number recorded runs as they are placed, imported ones after them."""
    last = max((run.number for run in recorded(runs)), default=0)
    found = {run.name: run.number for run in recorded(runs)}
    for run in runs:
        if run.record is None:
            last += 1
            found[run.name] = last
    return RunNumbers(found)


def _span(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"{first}"
    return f"{first}, {last}" if last == first + 1 else f"{first} to {last}"
