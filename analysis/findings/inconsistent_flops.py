"""One model, one image size, two counts of its work: rates and roofs of these do not compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.findings.finding import ReportFinding
from analysis.runs.placed import Run
from analysis.runs.quantities import three_digits

KIND = "inconsistent FLOP"
#: Counts of one model differ by rounding alone.
_TOLERANCE = 1e-3


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each model whose runs disagree in FLOP per image."""
    counts: dict[tuple[str, int], list[tuple[float, Run]]] = {}
    for run in runs:
        complexity = run.record.complexity if run.record else None
        if complexity is not None and complexity.step_flops:
            key = (complexity.arch, complexity.image_size)
            counts.setdefault(key, []).append((complexity.step_flops_per_image, run))
    for (arch, image_size), counted in counts.items():
        low, high = (pick(flops for flops, _ in counted) for pick in (min, max))
        if high > low * (1 + _TOLERANCE):
            yield ReportFinding(
                kind=KIND,
                headline=(
                    f"Runs of {arch} at {image_size} pixels count their work differently: "
                    f"{three_digits(low / 1e9)} to {three_digits(high / 1e9)} GFLOP an image."
                ),
                evidence=tuple(
                    f"{run.label}: {three_digits(flops / 1e9)} GFLOP an image"
                    for flops, run in counted
                ),
                runs=tuple(run.name for _, run in counted),
                advice="Compare images/s of these runs, not FLOP/s or places under the roof.",
            )
