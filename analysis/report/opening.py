"""What a report opens with: what there is, how fast, how near to the roof, and how sure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter

from analysis.findings.bottlenecks import loss_of
from analysis.findings.differences import uplifts
from analysis.runs.groups import Group, group_runs
from analysis.runs.place import PlacedProfile
from analysis.runs.run import TOKENS_PER_S, Run
from analysis.table import grouped, utc
from analysis.traces.placed import PlacedTrace
from analysis.words import (
    counted,
    flops_rate,
    percent,
    percent_interval,
    ratio_digits,
    three_digits,
)

#: What limits the speed, as the end of a sentence.
_BOUND = {
    "compute": "arithmetic is what limits it",
    "memory": "memory traffic is what limits it",
    "input": "waiting for {sample}s is what limits it",
    "slow kernels": "kernels that are slower than their roof are what limits it",
    "idle": "the device waits for its host to launch work",
    "host": "what the host does between ops is what limits it",
    "communication": "communication is what limits it",
    "not known": (
        "neither arithmetic nor memory traffic explains most of its time, and no step that "
        "was profiled says what does"
    ),
}


def opening(runs: Sequence[Run]) -> list[str]:
    """Return the three sentences, two more for each further kind of sample; two of no result.

    What is impossible trains fastest only where nothing else was measured.
    """
    groups = group_runs(runs)
    if not groups:
        return _nothing(runs)
    possible = [one for one in groups if all(run.verdict != "invalid" for run in one.runs)]
    measured = possible or groups
    kinds = grouped(measured, lambda one: one.sample)  # images/s and sequences/s have no order
    sentences = []
    for sample, of_kind in kinds.items():
        words = f" of {sample}s" if len(kinds) > 1 else ""
        best = max(of_kind, key=attrgetter("samples_per_s"))
        sentences.append(f"{_speed(best, of_kind, words)}{_against_fp32(best, runs)}.")
        sentences.append(f"{_roof(best, of_kind, words)}.")
        sentences += [f"{said}." for said in loss_of(best, runs) or () if said]
    return [*sentences, f"{_sureness(runs, measured)}."]


def _nothing(runs: Sequence[Run]) -> list[str]:
    loaders = [rate for run in runs if (rate := run.metrics.get("loader_images_per_s"))]
    if loaders:
        alone = f"{counted(len(loaders), 'run')} loaded images alone"
        return [f"No model was trained: {alone}, with up to {three_digits(max(loaders))} images/s."]
    why = next((f": {run.outcome} ({run.reason})" for run in runs if run.reason), "")
    return [
        f"None of {counted(len(runs), 'run')} ended with a measurement{why}.",
        "The list of problems has the reason of each.",
    ]


def _configuration(one: Group) -> str:
    batch = f" at batch {one.batch_size}" if one.batch_size else ""
    return f"{one.model_label} in {one.precision_label}{batch}"


def _speed(best: Group, measured: Sequence[Group], of_kind: str) -> str:
    rate = f"{three_digits(best.samples_per_s)} {best.first.rate_unit}"
    if (tokens_per_s := best.mean(TOKENS_PER_S)) is not None:
        rate += f" ({three_digits(tokens_per_s)} tokens/s)"
    if (deviation := best.repeats().relative_deviation) is not None:
        rate += f" with a deviation of {percent(deviation)} between its repeats"
    if len(measured) == 1:
        return f"{best.env} trains {_configuration(best)} with {rate}"
    machines = {one.env for one in measured}
    among = f" on {len(machines)} machines" if len(machines) > 1 else ""
    return (
        f"Of {len(measured)} configurations{of_kind}{among}, {_configuration(best)} on {best.env} "
        f"trains fastest: {rate}"
    )


def _against_fp32(best: Group, runs: Sequence[Run]) -> str:
    """What its precision gave, where fp32 was measured beside it, by the table's own verdict."""
    known = next((one.found for one in uplifts(runs) if one.low == best and one.found), None)
    if known is None:
        return ""
    if known.judgement == "undecided":
        return f"; whether that is more than in fp32 is undecided: {known.estimate.words}"
    if known.judgement == "tie":
        return ", as many as in fp32"
    return f", {ratio_digits(known.estimate.ratio)} times as many as in fp32"


def _roof(best: Group, measured: Sequence[Group], of_kind: str) -> str:
    if best.of_the_roof is None:
        reason = next((run.refusal for run in best.runs if run.refusal), "no reason recorded")
        return f"It has no place under a roof: {reason}"
    point, sample, gflops = best.points[0], best.sample, best.mean("attained_gflops")
    attained = point.attained_flops_per_s if gflops is None else 1e9 * gflops
    modelled = " by modelled work" if best.first.imported else ""
    unsure = "" if point.bound_sure else ", as far as modelled traffic can say"
    if best.first.imported and point.bound == "not known":
        unsure = f", or waiting for {sample}s, of which its file says nothing"
    reaches = (
        f"It reaches{modelled} {flops_rate(attained)}, {percent_interval(*best.of_the_roof)} of "
        f"what the roof of its machine allows in {point.ceiling.math_mode}: "
        f"{_BOUND[point.bound].format(sample=sample)}{unsure}"
    )
    shares = [(of[0], one) for one in measured if (of := one.of_the_roof)]
    (least, low), (most, high) = (choose(shares, key=itemgetter(0)) for choose in (min, max))
    ends = percent(least), percent(most)
    if len(shares) == 1:
        return reaches
    if ends[0] == ends[1]:
        return f"{reaches}; that share is the same in all configurations{of_kind}"
    return (
        f"{reaches}; over all configurations{of_kind} the share is from {ends[0]} "
        f"({_configuration(low)}) to {ends[1]} ({_configuration(high)})"
    )


def _sureness(runs: Sequence[Run], measured: Sequence[Group]) -> str:
    doubtful = sum(bool(run.problems) for run in runs)
    needs = f"{doubtful} of {counted(len(runs), 'run')} {'needs' if doubtful == 1 else 'need'} care"
    listed = "for the reasons that are listed below as problems"
    care = f"{needs}, {listed}" if doubtful else "No run is in doubt"
    single = sum(one.repeats().count == 1 for one in measured)
    if not single:
        return f"{care}, and every configuration was repeated"
    if len(measured) == 1:
        return f"{care}; it ran once, so nothing is known of how much repeats would differ"
    which = "each configuration" if single == len(measured) else f"{single} of the configurations"
    return f"{care}; {which} ran once, so differences of a few percent between them say nothing"


def summary(
    runs: Sequence[Run], profiles: Sequence[PlacedProfile], traces: Sequence[PlacedTrace] = ()
) -> str:
    """Return how many runs, profiles and traces there are, and where and when they ran."""
    others = [counted(len(profiles), "profile")] * bool(profiles)
    if not runs:
        traced = f"{counted(len(traces), 'trace')} that other programs recorded"
        return f"{', and '.join(others + [traced] * bool(traces))}."
    others += [counted(len(traces), "trace")] * bool(traces)
    counts = (
        (sum(run.outcome != "ok" for run in runs), "without a result"),
        (sum(run.imported is not None for run in runs), "imported"),
    )
    notes = ", ".join(f"{number} {words}" for number, words in counts if number)
    created = sorted(run.record.created for run in runs if run.record)
    ends = list(dict.fromkeys(utc(moment) for moment in (*created[:1], *created[-1:])))
    when = f", {'between' if len(ends) > 1 else 'on'} {' and '.join(ends)}" if ends else ""
    machines = counted(len({run.env for run in runs}), "machine")
    ran = f"{counted(len(runs), 'run')}{f' ({notes})' if notes else ''} on {machines}{when}"
    return f"{', and '.join([ran, *others])}."
