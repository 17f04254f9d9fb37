"""The three sentences that a report opens with: how fast, how near to the roof, how sure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from analysis.findings.differences import uplifts
from analysis.findings.report_finding import ratio_of
from analysis.report.tables.summary_table import Answer, answers
from analysis.runs.quantities import (
    counted,
    flops_rate,
    percent,
    percent_interval,
    ratio_digits,
    three_digits,
)
from analysis.runs.run import Run
from bench.config import Sample

#: What holds a step back, as the end of a sentence.
_BOUND = {
    "compute": "arithmetic is what limits it",
    "memory": "memory traffic is what limits it",
    "input": "waiting for {sample}s is what limits it",
    "overhead": (
        "neither arithmetic nor memory traffic explains most of its time, so launches, slow "
        "kernels or the host do"
    ),
}


def opening(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the three sentences, two more for each further kind of sample; two of no result."""
    found = answers(runs)
    measured = [one for one in found if one.group is not None]
    if not measured:
        return _nothing(runs)
    sentences: list[str] = []
    kinds = _by_sample(measured)
    for sample, part in kinds.items():
        best, of_kind = max(part, key=_rate), f" of {sample}s" if len(kinds) > 1 else ""
        sentences += [_speed(best, part, runs, of_kind), _roof(best, part, of_kind)]
    return (*sentences, _sureness(runs, measured))


def _by_sample(measured: Sequence[Answer]) -> dict[Sample, list[Answer]]:
    """Configurations whose rates can be set against each other: images/s and sequences/s cannot."""
    found: dict[Sample, list[Answer]] = {}
    for one in measured:
        found.setdefault(one.runs[0].sample, []).append(one)
    return found


def _rate(one: Answer) -> float:
    return one.group.samples_per_s if one.group else 0.0


def _nothing(runs: Sequence[Run]) -> tuple[str, ...]:
    loaders = [run for run in runs if run.metrics.get("loader_images_per_s")]
    if loaders:
        fastest = max(run.metrics["loader_images_per_s"] for run in loaders)
        return (
            "No model was trained: "
            f"{counted(len(loaders), 'run')} loaded images alone, with up to "
            f"{three_digits(fastest)} images/s.",
        )
    reasons = dict.fromkeys(f"{run.outcome} ({run.reason})" for run in runs if run.reason)
    why = f": {next(iter(reasons))}" if reasons else ""
    return (
        f"None of {counted(len(runs), 'run')} ended with a measurement{why}.",
        "The list of problems has the reason of each.",
    )


def _configuration(one: Answer) -> str:
    shown = one.group or one.runs[0]
    batch = f" at batch {shown.batch_size}" if shown.batch_size else ""
    return f"{shown.model_label} in {shown.precision_label}{batch}"


def _speed(best: Answer, measured: Sequence[Answer], runs: Sequence[Run], of_kind: str) -> str:
    rate = f"{three_digits(_rate(best))} {best.runs[0].rate_unit}"
    if best.group and (tokens_per_s := best.group.tokens_per_s) is not None:
        rate += f" ({three_digits(tokens_per_s)} tokens/s)"
    deviation = best.group.repeats().relative_deviation if best.group else None
    if deviation is not None:
        rate += f" with a deviation of {percent(deviation)} between its repeats"
    machine = best.runs[0].env
    if len(measured) == 1:
        return f"{machine} trains {_configuration(best)} with {rate}{_against_fp32(best, runs)}."
    machines = {one.runs[0].env for one in measured}
    among = "" if len(machines) == 1 else f" on {len(machines)} machines"
    return (
        f"Of {len(measured)} configurations{of_kind}{among}, {_configuration(best)} on {machine} "
        f"trains fastest: {rate}{_against_fp32(best, runs)}."
    )


def _against_fp32(best: Answer, runs: Sequence[Run]) -> str:
    """What its precision gave, where fp32 was measured beside it, by the table's own verdict."""
    known = next((one.found for one in uplifts(runs) if one.low == best.group and one.found), None)
    if known is None:
        return ""
    ratio = known.estimate.ratio
    if known.judgement == "undecided":
        return f"; whether that is more than in fp32 is undecided: {ratio_of(known.estimate)}"
    if known.judgement == "tie":
        return ", as many as in fp32"
    return f", {ratio_digits(ratio)} times as many as in fp32"


def _roof(best: Answer, measured: Sequence[Answer], of_kind: str) -> str:
    found = best.of_the_roof
    if found is None:
        reason = next((run.refusal for run in best.runs if run.refusal), "no reason recorded")
        return f"It has no place under a roof: {reason}."
    point = best.points[0]
    sample, gflops = best.runs[0].sample, best.attained_gflops
    attained = point.attained_flops_per_s if gflops is None else 1e9 * gflops
    unsure = "" if point.bound_sure else ", as far as modelled traffic can say"
    if point.imported_from and point.bound == "overhead":
        unsure = f", or waiting for {sample}s, of which its file says nothing"
    modelled = " by modelled work" if point.imported_from else ""
    one = (
        f"It reaches{modelled} {flops_rate(attained)}, {percent_interval(*found)} of what the "
        f"roof of its machine allows in {point.math_mode}: "
        f"{_BOUND[point.bound].format(sample=sample)}{unsure}"
    )
    shares = [(of[0], answer) for answer in measured if (of := answer.of_the_roof)]
    if len(shares) == 1:
        return f"{one}."
    (least, low), (most, high) = (choose(shares, key=itemgetter(0)) for choose in (min, max))
    ends = [percent(least), percent(most)]
    if ends[0] == ends[1]:
        return f"{one}; that share is the same in all configurations{of_kind}."
    return (
        f"{one}; over all configurations{of_kind} the share is from {ends[0]} "
        f"({_configuration(low)}) to {ends[1]} ({_configuration(high)})."
    )


def _sureness(runs: Sequence[Run], measured: Sequence[Answer]) -> str:
    doubtful = sum(bool(run.problems) for run in runs)
    care = (
        f"{doubtful} of {counted(len(runs), 'run')} {'needs' if doubtful == 1 else 'need'} care, "
        "for the reasons that are listed below as problems"
        if doubtful
        else "No run is in doubt"
    )
    single = sum(one.group is not None and one.group.repeats().count == 1 for one in measured)
    if not single:
        return f"{care}, and every configuration was repeated."
    which = "each configuration" if single == len(measured) else f"{single} of the configurations"
    if len(measured) == 1:
        return f"{care}; it ran once, so nothing is known of how much repeats would differ."
    return f"{care}; {which} ran once, so differences of a few percent between them say nothing."
