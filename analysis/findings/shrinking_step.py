"""A step of more images that takes less time: something else than the batch size changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from analysis.findings.finding import ReportFinding, names_of, rate_of
from analysis.runs.groups import batch_curves
from analysis.runs.placed import Run
from analysis.runs.quantities import three_digits
from analysis.statistics import estimate_ratio

KIND = "inconsistent times"
#: Kernels chosen for a larger batch can save a little of the step.
_LEAST_SHRINK = 0.9


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding where a larger batch's whole step is surely shorter than a smaller one's."""
    for curve in batch_curves(runs):
        for small, large in pairwise(curve):
            batches = (large.batch_size or 0) / (small.batch_size or 1)
            rates = estimate_ratio(large.repeats(), small.repeats())
            surely = rates.low if rates.low is not None else rates.ratio
            if batches / surely < _LEAST_SHRINK:
                steps_s = [
                    (group.batch_size or 0) / group.throughput_images_per_s
                    for group in (small, large)
                ]
                yield ReportFinding(
                    kind=KIND,
                    headline=(
                        f"{large.label}: a step of {large.batch_size} images took "
                        f"{three_digits(steps_s[1])} s, one of {small.batch_size} took "
                        f"{three_digits(steps_s[0])} s."
                    ),
                    evidence=tuple(f"{g.label}: {rate_of(g)}" for g in (small, large)),
                    runs=names_of((small, large)),
                    advice="More work cannot take less time: measure both again, the machine idle.",
                )
