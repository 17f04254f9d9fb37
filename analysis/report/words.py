"""The report's sentences: abstract, questions, references. Every number is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.findings import ReportFinding
from analysis.runs.groups import group_runs
from analysis.runs.placed import PlacedRun, Run
from analysis.runs.quantities import percent, three_digits

#: Findings that an abstract tells, and of one kind; the analysis has them all.
_TOLD = 6
_TOLD_OF_A_KIND = 2

QUESTIONS = (
    "How many images per second does each machine train, and how much do repeats scatter?",
    "Where does each run stand under the roof of its own machine, and what holds it back?",
    "What does a lower precision give, and up to which batch size does a larger batch pay?",
    "Which numbers must not be used, and which knob is worth turning next?",
)

REFERENCES = (
    "S. Williams, A. Waterman, D. Patterson: Roofline, an insightful visual performance model. "
    "Communications of the ACM 52(4), 2009.",
    "B. L. Welch: The generalization of Student's problem when several different population "
    "variances are involved. Biometrika 34, 1947.",
    "S. Holm: A simple sequentially rejective multiple test procedure. Scandinavian Journal of "
    "Statistics 6, 1979.",
    "A. C. Davison, D. V. Hinkley: Bootstrap Methods and their Application. Cambridge, 1997.",
    "D. N. Politis, H. White: Automatic block-length selection for the dependent bootstrap. "
    "Econometric Reviews 23, 2004; correction by A. Patton, D. Politis, H. White, 28, 2009.",
)


def abstract(
    summary: str,
    runs: Sequence[Run],
    results: Sequence[PlacedRun],
    findings: Sequence[ReportFinding],
) -> tuple[str, ...]:
    """Return the abstract's sentences: what was measured, the fastest, the roof, what was found."""
    return (
        summary,
        *_fastest(runs),
        *_under_the_roof(results),
        *(finding.headline for finding in _first_of_each_kind(findings)[:_TOLD]),
    )


def _fastest(runs: Sequence[Run]) -> Iterator[str]:
    machines = {group.first.env for group in group_runs(runs)}
    if machines:
        best = max(group_runs(runs), key=lambda group: group.throughput_images_per_s)
        among = "" if len(machines) == 1 else f" of {len(machines)} machines"
        yield (
            f"The highest throughput{among} is {three_digits(best.throughput_images_per_s)} "
            f"images/s, by {best.label}."
        )


def _under_the_roof(results: Sequence[PlacedRun]) -> Iterator[str]:
    points = [result.point for result in results if result.point]
    if points:
        best = max(points, key=lambda point: point.fraction_of_peak)
        bounds = [point.bound for point in points]
        counts = ", ".join(f"{bounds.count(b)} by {b}" for b in dict.fromkeys(bounds))
        yield (
            f"Of {len(points)} runs with a roof {counts} bound; the nearest to its compute roof "
            f"reaches {percent(best.fraction_of_peak)} ({best.env} {best.arch} {best.precision} "
            f"batch {best.batch_size})."
        )


def _first_of_each_kind(findings: Sequence[ReportFinding]) -> list[ReportFinding]:
    """One of each kind before the second of any: an abstract is to tell of all."""
    seen: dict[str, int] = {}
    ranked = []
    for place, finding in enumerate(findings):
        seen[finding.kind] = seen.get(finding.kind, 0) + 1
        ranked.append((seen[finding.kind], place, finding))
    ordered = sorted(ranked, key=lambda one: one[:2])
    return [finding for rank, _, finding in ordered if rank <= _TOLD_OF_A_KIND]
