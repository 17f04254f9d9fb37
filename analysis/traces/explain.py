"""What holds the steps of a trace back: their bound, and what to do.

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

from analysis.presentation.words import percent, three_digits
from analysis.runs.bounds import INPUT_SHARE, ROOF_SHARE
from bench.profilers.traces.steps import HINTS
from bench.records import TracedStep

COMPUTATION = "computation"
NOT_KNOWN = "not known"
#: A call is named if so much of the time lost to a cause was spent in it.
_CALL_SHARE = 0.1

#: Each cause of lost time for people.
_WORDS = {
    COMPUTATION: COMPUTATION,  # which is not lost
    "communication": "communication that no computation hides",
    "copies": "copies, and waiting for them",
    "input": "waiting for the data loader",
    "allocator": "the memory allocator",
    "synchronisation": "calls that wait for the device",
    "host": "a host that launches nothing",
    "launches": "launching one by one",
    "queued": "the device's own time between two kernels",
    "graph": "the device's own time between the kernels of a CUDA graph",
    "unexplained": "launched work that began late, for a reason that the trace does not hold",
    "not seen": "idle time whose cause is not in the trace",
}
#: What to do about each; another's remedy does not help.
_ADVICE = {
    "communication": "Hide communication: larger buckets (bucket_cap_mb), no_sync, a larger batch; "
    "see in the other ranks' traces whether one is late.",
    "copies": "Hide copies: pinned memory (pin_memory=True) and non_blocking=True for those from "
    "the host{names}, fewer conversions of layout and type.",
    "input": "Have batches ready earlier: more loader processes (num_workers), a larger "
    "prefetch_factor, smaller images on disk, a faster disk.",
    "allocator": "Let PyTorch keep its memory: no torch.cuda.empty_cache() in the loop, "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, a smaller batch.",
    "synchronisation": "Take out of the step what waits for the device{names}: .item(), print, "
    ".cpu(), nonzero; read losses every so many steps.",
    "host": "Take out of the step what the host computes{names}; {stack} names the Python code.",
    "launches": "Fewer launches for the work: a larger batch, CUDA graphs{compiling}.",
    "queued": "Fewer and larger kernels: a larger batch{compiling}. The work was launched in time.",
    "graph": "Fewer and larger kernels in the CUDA graph: a larger batch, ops fused by hand.",
    "unexplained": "Find what the launched work waits for: another process, another device, a host "
    "function. Nsight Systems shows it: nsys profile --cuda-graph-trace=node, over all processes.",
    "not seen": "Read each rank's own file, and have the host in it: {record}.",
}


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
    tool: str = "torch",
) -> Explanation:
    """Return what bounds the steps of one trace.

    `computation` is what bounds the computation itself, as a roof says: compute, memory, slow
    kernels. `in_loader` is the share of a step in which the host was in the data loader; it decides
    where the trace has no device. Of a step that is `compiled` already, compiling is no remedy.
    """
    known = [step for step in steps if step.device_time_s]
    if not known:  # of what a processor's steps lose, only the time in marked loaders is known
        why = steps[0].missing.get("idle_s", "no step has any") if steps else "there is no step"
        findings, advice = [f"No idle time is known: {why}"], []
        if in_loader > INPUT_SHARE:
            findings.append(f"The host is in the data loader for {percent(in_loader)} of the step")
            advice.append(_ADVICE["input"])
        bound = "input" if in_loader >= ROOF_SHARE else computation or NOT_KNOWN
        return Explanation(bound, tuple(findings), tuple(advice))
    times_s = list(map(device_times_s, known))
    causes = dict.fromkeys(cause for of_step in times_s for cause in of_step)
    for average in (statistics.median, statistics.fmean):  # where steps differ, medians may be 0
        averages = {
            cause: average([part_s.get(cause, 0) / sum(part_s.values()) for part_s in times_s])
            for cause in causes
        }
        shares = dict(sorted(averages.items(), key=lambda item: -item[1]))
        costly = {cause: share for cause, share in shares.items() if share > INPUT_SHARE}
        if costly:
            break
    places = {cause: _places(known, cause) for cause in costly}
    findings = [_length(times_s, costly)]
    for cause, spent in places.items():
        parts = [f"{_ms(time_s)} in {' of '.join(filter(None, names))}" for time_s, *names in spent]
        if parts:
            words = f"{cause[:1].upper()}{cause[1:]}, mean of a step"
            findings.append(f"{words}: {', '.join(parts[:3])}")
    findings += _communication(steps, known)
    if others := len(steps) - len(known):
        lost = dict.fromkeys(step.missing["idle_s"] for step in steps if step.idle_s is None)
        why = "; ".join(lost) or "no time on the device"
        findings.insert(0, f"Not looked at are {others} of {len(steps)} steps: {why}")
    told = {
        "compiling": "" if compiled else ", torch.compile",
        "record": HINTS[tool]["device"],
        "stack": HINTS[tool]["stack"],
    }
    advice = []
    for cause in filter(_ADVICE.get, costly):
        ops = dict.fromkeys(op or call or "" for _, call, op in places[cause][:3])
        names = f" ({', '.join(ops)})" if ops else ""
        advice.append(_ADVICE[cause].format(names=names, **told))
    bound = _bound(shares)
    if bound == COMPUTATION:
        bound = computation or bound
    return Explanation(bound, tuple(findings), tuple(advice))


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


def _bound(shares: Mapping[str, float]) -> str:
    computation, waiting = shares[COMPUTATION], shares.get("input", 0.0)
    if waiting > INPUT_SHARE and waiting >= 1 - computation - waiting:
        return "input"
    if computation >= ROOF_SHARE:
        return COMPUTATION
    largest = next(cause for cause in shares if cause != COMPUTATION)
    return NOT_KNOWN if largest == "unexplained" else largest


def _places(known: Sequence[TracedStep], cause: str) -> list[tuple[float, str | None, str | None]]:
    """Seconds of a mean step, call and op: where a cause's time was spent, without small parts."""
    sums_s: defaultdict[tuple[str | None, str | None], float] = defaultdict(float)
    for idle in (idle for step in known for idle in step.idle):
        if idle.cause == cause and (idle.call or idle.op):
            sums_s[idle.call, idle.op] += idle.time_s
    least_s = _CALL_SHARE * sum(device_times_s(step).get(cause, 0.0) for step in known)
    longest = sorted(sums_s.items(), key=lambda item: -item[1])
    return [(time_s / len(known), *names) for names, time_s in longest if time_s >= least_s]


def _length(times_s: Sequence[Mapping[str, float]], costly: Mapping[str, float]) -> str:
    """How long the steps are, and what takes most of them."""
    lengths_s = [sum(part_s.values()) for part_s in times_s]
    length, limits = "The step takes", ""
    if len(lengths_s) > 1:
        length = f"The median of {len(lengths_s)} steps takes"
        limits = f" ({_ms(min(lengths_s))} to {_ms(max(lengths_s))})"
    shares = ", ".join(f"{percent(share)} {_WORDS[cause]}" for cause, share in costly.items())
    return f"{length} {_ms(statistics.median(lengths_s))} on the device{limits}: {shares}"


def _communication(steps: Sequence[TracedStep], known: Sequence[TracedStep]) -> Iterator[str]:
    whole_s = sum(step.communication_s or 0.0 for step in steps)
    exposed_s = sum(step.exposed_communication_s or 0.0 for step in steps)
    if whole_s > 0:
        yield (
            f"Communication kernels run {_ms(whole_s / len(known))} of a step, "
            f"{percent(1 - exposed_s / whole_s)} of it beside computation; they also wait for the "
            "slowest rank"
        )


def _ms(seconds: float) -> str:
    return f"{three_digits(1e3 * seconds)} ms"
