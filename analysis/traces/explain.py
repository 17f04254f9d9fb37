"""What holds the steps of a trace back, in words: the bound, and what to do about it.

Shares are of what a step costs its device (`StepTime.device_time_s`): computation, communication
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.runs.bounds import INPUT_SHARE, ROOF_SHARE
from analysis.runs.quantities import percent, three_digits
from analysis.traces.remedies import remedy
from analysis.traces.timeline import IdleCause, StepTime

COMPUTATION = "computation"
NOT_KNOWN = "not known"
#: Below this share of the step a cause is not worth acting on.
LEAST_SHARE = INPUT_SHARE
#: A step that takes so many times the median is told, and so many of them.
_SLOW_STEP = 1.2
_MOST_SLOW_STEPS = 3
#: A place is named if so much of the time lost to a cause was spent there.
_PLACE_SHARE = 0.1
#: Marks shorter than this part of the steps' time are not the steps.
_AHEAD = 0.9

_KnownStep = tuple[StepTime, Mapping[str, float]]  # with its time by cause

_WORDS = {
    COMPUTATION: "computation",
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


@dataclass(frozen=True)
class Explanation:
    """The bound of a trace's steps, and the sentences that say why and what to do.

    `shares` are medians over the steps of the device's time, by cause, largest first.
    """

    bound: str
    shares: Mapping[str, float]
    sentences: tuple[str, ...]
    advice: tuple[str, ...]


def explain(
    times: Sequence[StepTime], computation: str | None = None, *, compiled: bool = False
) -> Explanation:
    """Return what bounds the steps of one trace.

    `computation` is what bounds the computation itself, as a roof says: compute, memory, slow
    kernels. It stands for the bound where that is computation. Of a step that is `compiled`
    already, compiling is no remedy.
    """
    known = [(time, lost) for time in times if (lost := time_by_cause(time))]
    if not known:
        return _without_device(times, computation)
    shares = _median_shares([lost for _, lost in known])
    bound = _bound(shares)
    costly = [cause for cause, share in shares.items() if share > LEAST_SHARE]
    calls = {cause: _calls(known, cause) for cause in costly}
    sentences = [_overview(known, shares, costly)]
    sentences += [_of_cause(cause, calls[cause]) for cause in costly if calls[cause]]
    sentences += _hidden(times)
    sentences += _slow_steps(known)
    sentences += _ahead(times)
    return Explanation(
        bound=(computation or bound) if bound == COMPUTATION else bound,
        shares=shares,
        sentences=tuple(sentences),
        advice=tuple(
            text for cause in costly if (text := remedy(cause, calls[cause], compiled=compiled))
        ),
    )


def _without_device(times: Sequence[StepTime], computation: str | None) -> Explanation:
    """A processor's steps: of what they lose, only the time in marked loaders is known."""
    why = next(iter(time.missing["idle_s"] for time in times), "there is no step")
    shares = [(time.loader_s or 0.0) / time.wall_s for time in times if time.wall_s > 0]
    share = statistics.median(shares) if shares else 0.0
    bound = "input" if share >= ROOF_SHARE else computation or NOT_KNOWN
    sentences = [f"No idle time is known: {why}"]
    if share <= LEAST_SHARE:
        return Explanation(bound, {}, tuple(sentences), ())
    sentences.append(f"The host is in the data loader for {percent(share)} of the step")
    advice = remedy("input", ()) or ""
    return Explanation(bound, {"input": share}, tuple(sentences), (advice,))


def time_by_cause(time: StepTime) -> dict[str, float]:
    """Return the seconds of the device's time by cause; empty where the trace has no device."""
    if time.device_time_s is None:
        return {}
    found = {
        COMPUTATION: time.computation_s or 0.0,
        "communication": time.exposed_communication_s or 0.0,
        "copies": time.exposed_copies_s or 0.0,
    }
    for cause in time.idle:
        found[cause.cause] = found.get(cause.cause, 0.0) + cause.time_s
    return found


def _median_shares(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    causes = dict.fromkeys(cause for step in steps for cause in step)
    totals = [sum(step.values()) or 1.0 for step in steps]
    shares = {
        cause: statistics.median(
            step.get(cause, 0.0) / total for step, total in zip(steps, totals, strict=True)
        )
        for cause in causes
    }
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _bound(shares: Mapping[str, float]) -> str:
    computation = shares[COMPUTATION]
    waiting = shares.get("input", 0.0)
    if waiting > INPUT_SHARE and waiting >= 1 - computation - waiting:
        return "input"
    if computation >= ROOF_SHARE:
        return COMPUTATION
    largest = next(cause for cause in shares if cause != COMPUTATION)
    return NOT_KNOWN if largest == "unexplained" else largest


def _overview(
    known: Sequence[_KnownStep],
    shares: Mapping[str, float],
    costly: Sequence[str],
) -> str:
    parts = ", ".join(f"{percent(shares[cause])} {_WORDS[cause]}" for cause in costly)
    return f"{_lengths([sum(lost.values()) for _, lost in known])}: {parts}"


def _lengths(lengths_s: Sequence[float]) -> str:
    if len(lengths_s) == 1:
        return f"The step takes {_milliseconds(lengths_s[0])} on the device"
    return (
        f"The median of {len(lengths_s)} steps takes "
        f"{_milliseconds(statistics.median(lengths_s))} on the device "
        f"({_milliseconds(min(lengths_s))} to {_milliseconds(max(lengths_s))})"
    )


def _calls(known: Sequence[_KnownStep], cause: str) -> list[IdleCause]:
    """Where the time of a cause was spent, a step's mean, longest first; no small parts."""
    sums: dict[IdleCause, float] = {}
    for time, _ in known:
        for one in time.idle:
            if one.cause == cause and (one.call or one.op):
                place = replace(one, time_s=0.0)
                sums[place] = sums.get(place, 0.0) + one.time_s
    least_s = _PLACE_SHARE * sum(lost.get(cause, 0.0) for _, lost in known)
    longest = sorted(sums.items(), key=lambda pair: -pair[1])
    return [
        replace(place, time_s=time_s / len(known)) for place, time_s in longest if time_s >= least_s
    ]


def _of_cause(cause: str, calls: Sequence[IdleCause]) -> str:
    places = ", ".join(f"{_milliseconds(one.time_s)} in {_place(one)}" for one in calls[:3])
    return f"{cause[:1].upper()}{cause[1:]}, mean of a step: {places}"


def _place(one: IdleCause) -> str:
    return " of ".join(filter(None, (one.call, one.op)))


def _hidden(times: Sequence[StepTime]) -> Iterator[str]:
    whole_s = sum(time.communication_s or 0.0 for time in times)
    exposed_s = sum(time.exposed_communication_s or 0.0 for time in times)
    if whole_s > 0:
        yield (
            f"Communication kernels run {_milliseconds(whole_s / len(times))} of a step, "
            f"{percent(1 - exposed_s / whole_s)} of it beside computation; they also wait for the "
            "slowest rank"
        )


def _slow_steps(known: Sequence[_KnownStep]) -> Iterator[str]:
    """Name what made the slowest steps slow: causes that took more than they do in the median."""
    if len(known) < 3:
        return
    median_s = statistics.median(sum(lost.values()) for _, lost in known)
    causes = dict.fromkeys(cause for _, lost in known for cause in lost)
    usual = {c: statistics.median(lost.get(c, 0.0) for _, lost in known) for c in causes}
    slow = [step for step in known if sum(step[1].values()) >= _SLOW_STEP * median_s]
    slow.sort(key=lambda step: -sum(step[1].values()))
    for time, lost in slow[:_MOST_SLOW_STEPS]:
        more = sorted(((lost.get(c, 0.0) - usual[c], c) for c in causes), reverse=True)
        parts = [
            f"{_milliseconds(more_s)} more of {_WORDS[cause]}"
            for more_s, cause in more[:2]
            if more_s > LEAST_SHARE * median_s
        ]
        yield f"{time.name} takes {_milliseconds(sum(lost.values()))}: {' and '.join(parts)}"


def _ahead(times: Sequence[StepTime]) -> Iterator[str]:
    device_s = statistics.median(time.device_time_s or 0.0 for time in times)
    wall_s = statistics.median(time.wall_s for time in times)
    if wall_s < _AHEAD * device_s:
        yield (
            f"The host runs ahead: the marks last {_milliseconds(wall_s)}, the steps "
            f"{_milliseconds(device_s)} on the device"
        )


def _milliseconds(seconds: float) -> str:
    return f"{three_digits(1e3 * seconds)} ms"
