"""Runs that must not be compared: impossible, inconsistent, disturbed or not in steady state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from analysis.findings.report_finding import ReportFinding, names_of, rate_of
from analysis.runs.groups import batch_curves
from analysis.runs.quantities import counted, percent, three_digits
from analysis.runs.run import Run
from analysis.statistics import estimate_ratio
from bench.config import Sample, a_sample, rate_unit
from bench.records import Complexity
from bench.records.verdict.claimed_flops import CODE as CLAIMED
from bench.records.verdict.drift import Drift


def find_above_roof(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding over all runs that outrun a ceiling by more than 3 %."""
    found = _said(runs, "above-compute-roof", "above-memory-roof")
    if found:
        above = _names(found)
        yield ReportFinding(
            kind="above the roof",
            headline=f"Faster than the roof allows, not to be used: {counted(len(above), 'run')}.",
            evidence=_lines(found),
            runs=above,
            advice=_roof_advice([run for run, _ in found]),
        )


def _roof_advice(runs: Sequence[Run]) -> str:
    measured = "Measure the ceilings of that machine again, idle, and compare the work counts."
    if all(run.imported_from is None for run in runs):
        return measured
    imported = "Read the source of the imported runs again: the rate, the devices, the model."
    alone = all(run.imported_from is not None for run in runs)
    return imported if alone else f"{measured} {imported}"


def find_stated_flops(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding over the imported runs whose files state other GFLOP/s than their work."""
    found = _said(runs, CLAIMED)
    if found:
        stating = sum("claimed_gflops" in run.metrics for run in runs)
        yield ReportFinding(
            kind="stated GFLOP/s",
            headline=(
                f"{len(_names(found))} of {counted(stating, 'imported run')} that state GFLOP/s "
                "differ by over 3 % from images/s x FLOP of a training step."
            ),
            evidence=_lines(found),
            runs=_names(found),
            advice="Compare images/s of these runs, not the GFLOP/s that their files state.",
        )


_Said = list[tuple[Run, str]]


def _said(runs: Iterable[Run], *codes: str) -> _Said:
    """What runs say of themselves, or their places under the roof, under these codes."""
    return [(run, one.message) for run in runs for one in run.findings if one.code in codes]


def _by_machine(runs: Iterable[Run], *codes: str) -> dict[str, _Said]:
    found: dict[str, _Said] = {}
    for run, message in _said(runs, *codes):
        found.setdefault(run.env, []).append((run, message))
    return found


def _names(found: _Said) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run.name for run, _ in found))


def _lines(found: _Said) -> tuple[str, ...]:
    return tuple(f"{run.label}: {message}" for run, message in found)


#: Counts of one model differ by rounding alone.
_TOLERANCE = 1e-3


def find_inconsistent_flops(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each model whose runs disagree in FLOP per sample."""
    counts: dict[tuple[str, str, Sample], list[tuple[float, Run]]] = {}
    for run in runs:
        complexity = run.record.complexity if run.record else None
        if complexity is not None and complexity.step_flops:
            key = (complexity.arch, _size(complexity), complexity.sample)
            counts.setdefault(key, []).append((complexity.step_flops_per_sample, run))
    for (arch, size, sample), found in counts.items():
        low, high = (pick(flops for flops, _ in found) for pick in (min, max))
        each = a_sample(sample)
        if high > low * (1 + _TOLERANCE):
            yield ReportFinding(
                kind="inconsistent FLOP",
                headline=(
                    f"Runs of {arch}{size} count their work differently: "
                    f"{three_digits(low / 1e9)} to {three_digits(high / 1e9)} GFLOP {each}."
                ),
                evidence=tuple(
                    f"{run.label}: {three_digits(flops / 1e9)} GFLOP {each}" for flops, run in found
                ),
                runs=tuple(run.name for _, run in found),
                advice=(
                    f"Compare {rate_unit(sample)} of these runs, not FLOP/s or places under the "
                    "roof."
                ),
            )


def _size(complexity: Complexity) -> str:
    """Of what size a sample is, as far as its kind has one."""
    if complexity.image_size is not None:
        return f" at {complexity.image_size} pixels"
    tokens = complexity.tokens_per_sample
    return "" if tokens is None else f" at {tokens} tokens"


#: Kernels chosen for a larger batch can save a little of the step.
_MIN_SHRINK = 0.9


def find_shrinking_steps(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding where a larger batch's whole step is surely shorter than a smaller one's."""
    for curve in batch_curves(runs):
        for small, large in pairwise(curve):
            batches = (large.batch_size or 0) / (small.batch_size or 1)
            rates = estimate_ratio(large.repeats(), small.repeats())
            surely = rates.low if rates.low is not None else rates.ratio
            if batches / surely < _MIN_SHRINK:
                steps_s = [
                    (group.batch_size or 0) / group.samples_per_s for group in (small, large)
                ]
                yield ReportFinding(
                    kind="inconsistent times",
                    headline=(
                        f"{large.label}: a step of {large.batch_size} {large.sample}s took "
                        f"{three_digits(steps_s[1])} s, one of {small.batch_size} took "
                        f"{three_digits(steps_s[0])} s."
                    ),
                    evidence=tuple(f"{g.label}: {rate_of(g)}" for g in (small, large)),
                    runs=names_of((small, large)),
                    advice="More work cannot take less time: measure both again, the machine idle.",
                )


def find_throttling(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine whose device reported a throttle reason in over 5 %."""
    for env, found in _by_machine(runs, "throttled").items():
        names = _names(found)
        measured = sum(run.env == env for run in runs)
        yield ReportFinding(
            kind="throttled",
            headline=f"{env}: the device throttled itself in {len(names)} of {measured} runs.",
            evidence=_lines(found),
            runs=names,
            advice="Mend cooling or power, or fix the clock: these rates are the limit's.",
        )


def find_drift(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine with windows that drifted."""
    machines: dict[str, list[tuple[Run, Drift]]] = {}
    for run in runs:
        drift = run.drift
        if drift is not None:
            machines.setdefault(run.env, []).append((run, drift))
    for env, found in machines.items():
        tested = sum(run.env == env and bool(run.iteration_times_s) for run in runs)
        slower = sum(drift.change > 0 for _, drift in found)
        yield ReportFinding(
            kind="drifting",
            headline=(
                f"{env}: {len(found)} of {tested} windows were not in steady state; "
                f"{slower} became slower, {len(found) - slower} faster."
            ),
            evidence=tuple(_line(run, drift) for run, drift in found),
            runs=tuple(run.name for run, _ in found),
            advice=" ".join(_drift_advice(slower, len(found) - slower)),
        )


def _drift_advice(slower: int, faster: int) -> Iterator[str]:
    if faster:
        yield "A window that becomes faster needs more warm-up iterations."
    if slower:
        yield "A window that becomes slower was heated or disturbed."
    yield "Intervals of these windows mean little."


def _line(run: Run, drift: Drift) -> str:
    word = "slower" if drift.change > 0 else "faster"
    return (
        f"{run.label}: the last third {percent(abs(drift.change))} {word} than the first, "
        f"most of it after iteration {drift.changed_at} of {len(run.iteration_times_s)}"
    )


def find_foreign_processes(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine that was not alone with its measurement."""
    for env, found in _by_machine(runs, "foreign-process", "busy-host", "stolen-time").items():
        names = _names(found)
        measured = sum(run.env == env for run in runs)
        yield ReportFinding(
            kind="foreign process",
            headline=f"{env}: {len(names)} of {counted(measured, 'measurement')} shared the "
            "machine with other work.",
            evidence=_lines(found),
            runs=names,
            advice="Measure these again on an idle machine (rented: with cores of its own) before "
            "comparing them.",
        )
