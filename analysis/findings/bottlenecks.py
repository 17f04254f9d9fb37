"""What holds a step back: data, or launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from analysis.findings.next_knob import advice
from analysis.findings.report_finding import ReportFinding, names_of, rate_of, ratio_of
from analysis.findings.waiting import faster, loader_keeps_up, loader_rate, synthetic_pairs
from analysis.runs.bounds import INPUT_SHARE
from analysis.runs.groups import Group, batch_curves, group_runs
from analysis.runs.quantities import percent, three_digits
from analysis.runs.run import Run
from analysis.statistics import estimate_ratio
from bench.config import FAKEDATA


def find_input_bound(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each configuration that its input holds back."""
    groups = group_runs(runs)
    counterparts = {group.names: other for group, other in synthetic_pairs(groups)}
    for group in groups:
        waiting = [run for run in group.runs if _waits(run)]
        synthetic = counterparts.get(group.names)
        if not waiting:
            continue
        if synthetic is not None and not faster(synthetic, group):
            continue  # the wait costs nothing: without it the step is no faster
        share = max(run.metrics["data_wait_share"] for run in waiting)
        gain = "" if share >= 1 else f", so {three_digits(1 / (1 - share))}x at most without it"
        evidence = [
            f"run {run.name}: {percent(run.metrics['data_wait_share'])} of the window waiting"
            for run in waiting
        ]
        if synthetic is not None:
            estimate = estimate_ratio(synthetic.repeats(), group.repeats())
            evidence.append(
                f"synthetic data: {rate_of(synthetic)}, {ratio_of(estimate)} of {rate_of(group)}"
            )
        alone = loader_rate(group, runs)
        if alone is not None:
            evidence.append(f"the loader alone: {three_digits(alone)} images/s")
        yield ReportFinding(
            kind="input-bound",
            headline=f"{group.label}: waiting for data takes {percent(share)} of the step{gain}.",
            evidence=tuple(evidence),
            runs=names_of([group, *([synthetic] if synthetic else [])]),
            advice=_input_advice(group, runs),
        )


def _input_advice(group: Group, runs: Sequence[Run]) -> str | None:
    """What is not on yet and was not measured to fail; None where nothing is left."""
    parts = [*advice(group, ("workers", "images"), runs).values()]
    if loader_keeps_up(group, runs):
        parts.append(
            "batches that are ready earlier, as the loader alone is faster than the step: "
            "cores that the step does not take from it, prefetch_factor, non_blocking"
        )
    elif group.first.settings.get("data") != FAKEDATA:
        parts.append("a faster disk")
    return f"{' or '.join(parts).capitalize()}." if parts else None


def _waits(run: Run) -> bool:
    """By the bound where the run has a place under the roof, else by the share that waits."""
    point = run.point
    if point is not None:
        return point.bound == "input"
    return run.metrics.get("data_wait_share", 0.0) > INPUT_SHARE


#: With so many times the samples, a step that grows by less than this pays per launch.
_MORE_SAMPLES = 1.9
_SAME_STEP = 1.15
#: A smaller step for more samples is no launch cost but a fault.
_MIN_GROWTH = 0.9


def find_launch_bound(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each accelerator's curve with a flat step time or a starved device."""
    for curve in batch_curves(runs):
        if curve[0].backend == "cpu":
            continue
        if curve[0].first.settings.get("cuda_graphs") == "true" or _compiled_to_graphs(curve[0]):
            continue  # one launch for the whole step
        flat = [pair for pair in pairwise(curve) if _flat(*pair) and not _explained(*pair)]
        runs_of_curve = [run for group in curve for run in group.runs]
        starved = [(run, why) for run in runs_of_curve if (why := _why_starved(run))]
        if not flat and not starved:
            continue
        groups = [group for pair in flat for group in pair]
        evidence = [
            f"batch {small.batch_size} to {large.batch_size}: the step takes "
            f"{_milliseconds(small)} and {_milliseconds(large)} ms"
            for small, large in flat
        ]
        evidence += [f"{run.label}: {why}" for run, why in starved]
        first = curve[0]
        yield ReportFinding(
            kind="launch-bound",
            headline=(
                f"{first.env}, {first.model_label} {first.precision_label}: launching the step's "
                "kernels, not their work, sets its time"
                + (f" up to batch {flat[-1][1].batch_size}." if flat else ".")
            ),
            evidence=tuple(evidence),
            runs=tuple(dict.fromkeys([*names_of(groups), *(run.name for run, _ in starved)])),
            advice=_launch_advice(flat, curve[-1], runs),
        )


def _launch_advice(
    flat: Sequence[tuple[Group, Group]], largest: Group, runs: Sequence[Run]
) -> str | None:
    if flat:
        known = [f"a batch of {flat[-1][1].batch_size} or more"]
        knobs = [*known, *advice(flat[-1][1], ("cuda_graphs", "compile"), runs).values()]
    else:
        knobs = [*advice(largest, ("batch_size", "cuda_graphs", "compile"), runs).values()]
    return f"Fewer launches for the work: {', '.join(knobs)}." if knobs else None


def _compiled_to_graphs(group: Group) -> bool:
    """These modes of torch.compile record CUDA graphs."""
    return group.first.settings.get("compile") in ("reduce-overhead", "max-autotune")


def _flat(small: Group, large: Group) -> bool:
    more = (large.batch_size or 0) / (small.batch_size or 1)
    growth = more * small.samples_per_s / large.samples_per_s
    return more >= _MORE_SAMPLES and _MIN_GROWTH <= growth < _SAME_STEP


def _explained(*groups: Group) -> bool:
    """Whether the roof or the input explains a step: a flat one may read its weights each time."""
    points = [run.point for group in groups for run in group.runs if run.point]
    return any(point.bound != "overhead" for point in points)


def _why_starved(run: Run) -> str | None:
    """What a profile saw of a device that was idle, if neither roof nor input explains the step."""
    point = run.point
    if point is None or point.bound != "overhead" or point.times.device_busy_s is None:
        return None
    busy = point.times.device_busy_s / point.times.measured_s
    words = f"the device was at work {percent(busy)} of the step; {point.bound_because}"
    return words if busy < 1 / 2 else None


def _milliseconds(group: Group) -> str:
    return three_digits(1e3 * (group.batch_size or 0) / group.samples_per_s)
