"""Files of one profile: the same launches, each pass with metrics of its own."""

from __future__ import annotations

from collections.abc import Sequence

from bench.errors import UserError
from bench.profilers.files.figures import Figure
from bench.profilers.files.totals import Totals


def merged(passes: Sequence[Totals]) -> Totals:
    """Put the metrics of all passes side by side; nothing is added up twice.

    Raises `UserError` where the passes differ in their launches or their chip.
    """
    first, *others = passes
    for other in others:
        _refuse_other_work(first, other)
    chips = set().union(*(part.chips for part in passes))
    if len(chips) > max(len(part.chips) for part in passes):
        raise UserError(
            f"{_files(passes)}: collected on different chips: {', '.join(sorted(chips))}"
        )
    result = Totals(
        source="; ".join(dict.fromkeys(part.source for part in passes)),
        files=tuple(file for part in passes for file in part.files),
        chips=chips,
        launches=first.launches,
        names=set().union(*(part.names for part in passes)),
    )
    for part in passes:
        for (kernel, metric), figure in part.figures.items():
            before = result.figures.get((kernel, metric), Figure(0, figure.total))
            if figure.counted > before.counted:
                result.figures[kernel, metric] = figure
    return result


def _refuse_other_work(first: Totals, other: Totals) -> None:
    """Raise unless both launched the same kernels equally often."""
    differing = {
        kernel: (first.launches[kernel], other.launches[kernel])
        for kernel in first.launches | other.launches
        if first.launches[kernel] != other.launches[kernel]
    }
    if differing:
        kernel, (here, there) = min(differing.items())
        raise UserError(
            f"{_files([first, other])}: not the same work: {len(differing)} kernels differ, such as"
            f" {kernel[:80]!r}, launched {here} times and {there}; profile both passes anew"
        )


def _files(passes: Sequence[Totals]) -> str:
    return " and ".join(file for part in passes for file in part.files)
