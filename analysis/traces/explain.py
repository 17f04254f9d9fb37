"""What holds the steps of a trace back, in words: the bound, and what to do about it.

Shares are of what a step costs its device (`TracedStep.device_time_s`): computation, communication
and copies that nothing hides, and idle time by cause. Time that is no computation is lost. The
bound is decided on the medians over the steps, by the thresholds that bounds of runs have
(`analysis.runs.bounds`):

1. input, if the device idles for it over 5 % of the step, and no less than all else that is lost;
2. computation, if it fills half of the step; a roof says whether that is arithmetic, memory traffic
   or slow kernels;
3. else the largest cause of lost time; it is not known where that is unexplained.

A trace without a device (a processor's) shows no idle time. Its bound is input if marked loaders
take half of the step, so that nothing else can cost more.

Every cause of over 5 % gets its sentence and its advice, whatever the bound.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analysis.runs.bounds import INPUT_SHARE, ROOF_SHARE
from analysis.words import percent, three_digits
from bench.records import TracedStep

COMPUTATION = "computation"
NOT_KNOWN = "not known"
#: Below this share of the step a cause is not worth acting on.
LEAST_SHARE = INPUT_SHARE
#: A step that takes so many times the median is told, and so many of them.
_SLOW_STEP = 1.2
_MOST_SLOW_STEPS = 3
#: A call is named if so much of the time lost to a cause was spent in it.
_CALL_SHARE = 0.1
#: Marks shorter than this part of the steps' time are not the steps.
_AHEAD = 0.9

#: Each cause of lost time for people, and what to do about it; another's remedy does not help.
_CAUSES = {
    COMPUTATION: (COMPUTATION, ""),  # which is not lost
    "communication": (
        "communication that no computation hides",
        "Hide or save communication: larger buckets (bucket_cap_mb), no_sync with gradient "
        "accumulation, a larger batch for each device, gradients in 16 bits; and see in the other "
        "ranks' traces whether one of them is late.",
    ),
    "copies": (
        "copies, and waiting for them",
        "The host waits for copies to the device: pinned memory (pin_memory=True in the loader) "
        "and non_blocking=True{names}.",
    ),
    "input": (
        "waiting for the data loader",
        "Have batches ready earlier: more loader processes (num_workers) and a larger "
        "prefetch_factor, smaller images on disk, a faster disk.",
    ),
    "allocator": (
        "the memory allocator",
        "Let PyTorch keep its memory: no torch.cuda.empty_cache() in the loop, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, shapes that stay the same; if memory is "
        "full, a smaller batch.",
    ),
    "synchronisation": (
        "calls that wait for the device",
        "Take out of the step what waits for the device{names}: .item(), print, .cpu(), "
        "nonzero, if on a tensor; read losses every so many steps.",
    ),
    "host": (
        "a host that launches nothing",
        "Take out of the step what the host computes between launches{names}; "
        "with_stack=True in the profiler names the Python code.",
    ),
    "launches": (
        "launching one by one",
        "Fewer launches for the work: a larger batch, CUDA graphs{compiling}.",
    ),
    "queued": (
        "the device's own time between two kernels",
        "Fewer and larger kernels: a larger batch{compiling}. The work was launched in time.",
    ),
    "graph": (
        "the device's own time between the kernels of a CUDA graph",
        "Fewer and larger kernels in the CUDA graph: a larger batch, ops fused by hand. It saves "
        "all launches already.",
    ),
    "unexplained": (
        "launched work that began late, for a reason that the trace does not hold",
        "Find what the launched work waits for: another process on the device, another device's "
        "event, a host function in the stream, kernels that the profiler leaves out. Nsight "
        "Systems shows them: nsys profile --cuda-graph-trace=node, over all processes.",
    ),
    "not seen": (
        "idle time whose cause is not in the trace",
        "Record the host too, torch.profiler.profile(activities=[CPU, CUDA]), and read each rank's "
        "own file: in one file of several ranks it is not known which call launched what.",
    ),
}
_OF_OWN_LOADER = (
    "Have batches ready earlier: loader processes (num_workers above 0: the step's own process "
    "loads now), smaller images on disk, a faster disk."
)
_OF_DEVICES_COPIES = (
    "Copies that nothing hides: fewer conversions of layout and type, and pinned memory "
    "with non_blocking=True for those from the host."
)

_KnownStep = tuple[TracedStep, Mapping[str, float]]  # with its seconds by cause
_Call = tuple[float, str | None, str | None]  # seconds of a mean step in it, call, op


class Explanation(NamedTuple):
    """The bound of a trace's steps, and the sentences that say why and what to do."""

    bound: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]


def explain(
    steps: Sequence[TracedStep],
    computation: str | None = None,
    *,
    in_loader: float = 0.0,
    compiled: bool = False,
) -> Explanation:
    """Return what bounds the steps of one trace.

    `computation` is what bounds the computation itself, as a roof says: compute, memory, slow
    kernels. `in_loader` is the share of a step in which the host was in the data loader; it decides
    where the trace has no device. Of a step that is `compiled` already, compiling is no remedy.
    """
    known = [(step, times_s) for step in steps if (times_s := device_times_s(step))]
    if not known:
        return _without_device(steps, computation, in_loader)
    totals_s = [sum(times_s.values()) or 1.0 for _, times_s in known]
    shares = {
        cause: statistics.median(
            times_s.get(cause, 0) / total_s
            for (_, times_s), total_s in zip(known, totals_s, strict=True)
        )
        for cause in dict.fromkeys(cause for _, times_s in known for cause in times_s)
    }
    shares = dict(sorted(shares.items(), key=lambda item: -item[1]))
    costly = [cause for cause, share in shares.items() if share > LEAST_SHARE]
    calls = {cause: _calls(known, cause) for cause in costly}
    bound = _bound(shares)
    return Explanation(
        (computation or bound) if bound == COMPUTATION else bound,
        tuple(_findings(steps, known, {cause: shares[cause] for cause in costly}, calls)),
        tuple(_remedy(one, calls[one], compiled) for one in costly if one != COMPUTATION),
    )


def device_times_s(step: TracedStep) -> dict[str, float]:
    """Return the seconds of the device's time by cause; empty where the trace has no device."""
    if step.device_time_s is None:
        return {}
    idle_s = step.idle_s_by_cause
    return {
        COMPUTATION: step.computation_s or 0.0,
        "communication": step.exposed_communication_s or 0.0,
        "copies": (step.exposed_copies_s or 0.0) + idle_s.pop("copies", 0.0),
        **idle_s,
    }


def _without_device(
    steps: Sequence[TracedStep], computation: str | None, in_loader: float
) -> Explanation:
    """A processor's steps: of what they lose, only the time in marked loaders is known."""
    why = steps[0].missing["idle_s"] if steps else "there is no step"
    unknown = f"No idle time is known: {why}"
    bound = "input" if in_loader >= ROOF_SHARE else computation or NOT_KNOWN
    if in_loader <= LEAST_SHARE:
        return Explanation(bound, (unknown,), ())
    waiting = f"The host is in the data loader for {percent(in_loader)} of the step"
    return Explanation(bound, (unknown, waiting), (_CAUSES["input"][1],))


def _bound(shares: Mapping[str, float]) -> str:
    computation, waiting = shares[COMPUTATION], shares.get("input", 0.0)
    if waiting > INPUT_SHARE and waiting >= 1 - computation - waiting:
        return "input"
    if computation >= ROOF_SHARE:
        return COMPUTATION
    largest = next(cause for cause in shares if cause != COMPUTATION)
    return NOT_KNOWN if largest == "unexplained" else largest


def _calls(known: Sequence[_KnownStep], cause: str) -> list[_Call]:
    """In which calls and ops a cause's time was spent, longest first, without small parts."""
    sums_s: defaultdict[tuple[str | None, str | None], float] = defaultdict(float)
    for idle in (idle for step, _ in known for idle in step.idle):
        if idle.cause == cause and (idle.call or idle.op):
            sums_s[idle.call, idle.op] += idle.time_s
    least_s = _CALL_SHARE * sum(times_s.get(cause, 0.0) for _, times_s in known)
    longest = sorted(sums_s.items(), key=lambda item: -item[1])
    return [(time_s / len(known), *names) for names, time_s in longest if time_s >= least_s]


def _remedy(cause: str, calls: Sequence[_Call], compiled: bool) -> str:
    if cause == "input" and calls and "SingleProcess" in (calls[0][1] or ""):
        return _OF_OWN_LOADER
    if cause == "copies" and not calls:  # the device is at work
        return _OF_DEVICES_COPIES
    ops = dict.fromkeys(op or call or "" for _, call, op in calls[:3])
    return _CAUSES[cause][1].format(
        names=f" ({', '.join(ops)})" if ops else "",
        compiling="" if compiled else ", torch.compile",
    )


def _findings(
    steps: Sequence[TracedStep],
    known: Sequence[_KnownStep],
    costly: Mapping[str, float],
    calls: Mapping[str, Sequence[_Call]],
) -> Iterator[str]:
    """Say where the time goes: the shares of `costly` causes, their calls, and slow steps."""
    times_s = [sum(times_s.values()) for _, times_s in known]
    median_s = statistics.median(times_s)
    length, limits = "The step takes", ""
    if len(times_s) > 1:
        length = f"The median of {len(times_s)} steps takes"
        limits = f" ({_ms(min(times_s))} to {_ms(max(times_s))})"
    shares = (f"{percent(share)} {_CAUSES[cause][0]}" for cause, share in costly.items())
    yield f"{length} {_ms(median_s)} on the device{limits}: {', '.join(shares)}"
    for cause, spent in calls.items():
        parts = [f"{_ms(time_s)} in {' of '.join(filter(None, names))}" for time_s, *names in spent]
        if parts:
            yield f"{cause[:1].upper()}{cause[1:]}, mean of a step: {', '.join(parts[:3])}"
    whole_s = sum(step.communication_s or 0.0 for step in steps)
    exposed_s = sum(step.exposed_communication_s or 0.0 for step in steps)
    if whole_s > 0:
        yield (
            f"Communication kernels run {_ms(whole_s / len(steps))} of a step, "
            f"{percent(1 - exposed_s / whole_s)} of it beside computation; they also wait for the "
            "slowest rank"
        )
    yield from _slow_steps(known, median_s)
    wall_s = statistics.median(step.wall_s for step in steps)
    if wall_s < _AHEAD * median_s:
        yield (
            f"The host runs ahead: the marks last {_ms(wall_s)}, the steps {_ms(median_s)} on the "
            "device"
        )


def _slow_steps(known: Sequence[_KnownStep], median_s: float) -> Iterator[str]:
    """Name what made the slowest steps slow: causes that took more than they do in the median."""
    if len(known) < 3:
        return
    causes = dict.fromkeys(cause for _, times_s in known for cause in times_s)
    usual_s = {c: statistics.median(times_s.get(c, 0) for _, times_s in known) for c in causes}
    longest = sorted(known, key=lambda one: -sum(one[1].values()))
    for step, times_s in longest[:_MOST_SLOW_STEPS]:
        if (length_s := sum(times_s.values())) < _SLOW_STEP * median_s:
            return
        more = sorted(((times_s.get(c, 0.0) - usual_s[c], c) for c in causes), reverse=True)
        parts = [
            f"{_ms(more_s)} more of {_CAUSES[cause][0]}"
            for more_s, cause in more[:2]
            if more_s > LEAST_SHARE * median_s
        ]
        why = " and ".join(parts) or "no single cause took longer than usual"
        yield f"{step.name} takes {_ms(length_s)}: {why}"


def _ms(seconds: float) -> str:
    return f"{three_digits(1e3 * seconds)} ms"
