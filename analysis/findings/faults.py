"""Runs that must not be compared: impossible, inconsistent, disturbed, drifting or spilled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from analysis.findings.batches import FULL, curve_row, memory_share
from analysis.runs.frame import Row
from analysis.runs.groups import CLIFF, Configurations, Group, names_of
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION
from analysis.statistics import estimate_ratio
from analysis.words import percent, three_digits
from bench.config import Sample, a_sample, rate_unit
from bench.records import Complexity


def stated(runs: Iterable[Run], codes: Collection[str]) -> Iterator[Row]:
    """Yield what runs say of themselves, or their places under the roof, under these codes."""
    for run in runs:
        for one in run.findings:
            if one.code in codes:
                yield _of_run(run) | {"message": one.message, "imported": run.imported}


def _of_run(run: Run) -> Row:
    return {"machine": run.env, "label": run.label, "runs": (run.name,)}


def roof_rows(runs: Iterable[Run]) -> Iterator[Row]:
    """Yield the runs that outrun a ceiling by more than 3 %."""
    for row in stated(runs, ("above-compute-roof", "above-memory-roof")):
        advice = (
            "Read the source of the imported runs again: the rate, the devices, the model."
            if row["imported"]
            else "Measure the ceilings of that machine again, idle, and compare the work counts."
        )
        yield row | {"advice": advice}


#: Counts of one model differ by rounding alone.
_TOLERANCE = 1e-3


def work_rows(runs: Iterable[Run]) -> Iterator[Row]:
    """Yield each model whose runs disagree in FLOP per sample."""
    counts: dict[tuple[str, Sample], list[tuple[float, str]]] = {}
    for run in runs:
        one = run.record.complexity if run.record else None
        if one is not None and one.step_flops:
            of_model = counts.setdefault((f"{one.arch}{_size(one)}", one.sample), [])
            of_model.append((one.step_flops_per_sample, run.name))
    for (model, sample), found in counts.items():
        low, high = min(found)[0], max(found)[0]
        if high > low * (1 + _TOLERANCE):
            yield {
                "model": model,
                "flops": f"{three_digits(low / 1e9)} to {three_digits(high / 1e9)} GFLOP",
                "each": a_sample(sample),
                "rate": rate_unit(sample),
                "runs": [name for _, name in found],
            }


def _size(complexity: Complexity) -> str:
    if complexity.image_size is not None:
        return f" at {complexity.image_size} pixels"
    tokens = complexity.tokens_per_sample
    return "" if tokens is None else f" at {tokens} tokens"


#: Kernels chosen for a larger batch can save a little of the step.
_MIN_SHRINK = 0.9


def shrinking_rows(runs: Configurations) -> Iterator[Row]:
    """Yield where a larger batch's whole step is surely shorter than a smaller one's."""
    for small, large in (pair for curve in runs.curves for pair in pairwise(curve)):
        rates = estimate_ratio(large.repeats(), small.repeats())
        surely = rates.interval.low if rates.interval else rates.ratio
        if (large.batch_size or 0) / (small.batch_size or 1) / surely < _MIN_SHRINK:
            pair = {"small": small, "large": large}
            yield {"machine": large.env, "runs": names_of((small, large)), **pair}


def spill_rows(runs: Configurations) -> Iterator[Row]:
    """Yield each batch curve with a cliff, and whether amp was measured to stay off it."""
    for curve in (one for one in runs.curves if one.cliff is not None):
        past = curve[len(curve.before_cliff) :]
        good, bad = curve.before_cliff[-1], past[0]
        instead, spared = "", []
        if bad.precision in ("fp32", "tf32"):
            key = bad.identity.key(OF_PRECISION)
            lower = [
                one
                for one in runs.groups
                if one.precision.startswith("amp") and one.identity.key(OF_PRECISION) == key
            ]
            spared = [one for one in lower if CLIFF * one.samples_per_s > bad.samples_per_s][:1]
            if spared or not lower:
                instead = ", or use a precision with smaller activations"
        for one in spared:
            instead += f" (batch {bad.batch_size} {one.precision} runs at {one.rate})"
        yield curve_row(curve) | {
            "good": good,
            "bad": bad,
            "cause": _cause(bad),
            "instead": instead,
            "runs": names_of((good, *past, *spared)),
        }


def _cause(group: Group) -> str:
    where = "device memory spilling to host memory"
    share = memory_share(group)
    peak = "" if share is None else f"its peak was {percent(share)} of the device's memory"
    if share is not None and share < FULL:
        return f"unknown, as {peak}; {where} would need other programs on the device"
    return f"{where} (Windows' driver does so silently, also below WSL){peak and '; '}{peak}"
