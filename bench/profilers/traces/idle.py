"""Why a device idles: each gap between its work, by what the host did then.

A gap ends with the next kernel, copy or fill. Until the call that launched it has returned, and for
at least 20 us after that call began (a launch takes that long to arrive), the host held it up. What
counts is where a thread that launches was, up to the beginning of that call:

- input: inside a mark of the data loader (`enumerate(DataLoader)#...__next__`);
- allocator: inside a call that reserves or releases memory (`cudaMalloc`, `hipFree`,
  `cudaHostAlloc`);
- copies: inside a call that waits for a copy from host to device (`cudaMemcpyAsync` of pageable
  memory, and the `cudaStreamSynchronize` of the same op);
- synchronisation: inside any other call that waits for the device (`cudaStreamSynchronize`,
  `hipDeviceSynchronize`, `cudaMemcpy`, `cudaMemcpyAsync` if the copy begins before it returns);
- host: the host launched nothing for over a millisecond. Named is the operator that ran; none
  ran where Python did, or what the profiler does not record;
- launches: the host launched one by one.

If several hold, the first one counts. Only threads that launch work of the device count: what a
communication library's watchdog waits for does not hold launches up.

A call costs more than the gap that it ends in: without it the host would be ahead by as long as it
took. So if the device ran dry inside a call of the allocator, a copy or a synchronisation, idle
time after it that would be host or launches is put down to this call too, until all idle time since
the device ran dry is as long as the call was. With one queue and one such call, this is exactly
what the step gains without the call: the begin of work n is S[n] = max(S[n-1] + d[n-1], L[n]), for
durations d and launches L, so launches that come earlier by w save all idle time since then, but w
at most.

Four causes are not the host's:

- queued: the work was launched before and began within 100 us: the device's own time between two
  kernels;
- graph: the same between two kernels of one CUDA graph;
- unexplained: the work was launched before, in a graph or not, and began later than that on a
  device that ran nothing. What it waited for is not in the trace: another device's event, a host
  function, another process, kernels that the profiler left out;
- not seen: the trace does not have the launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.profilers.traces.intervals import (
    Numbers,
    Times,
    number_at,
    paint,
    painted_at,
    span_times,
)
from bench.profilers.traces.spans import DeviceSpan, HostSpan

Thread = tuple[Any, Any]
Flags = npt.NDArray[np.bool_]
#: Torch's mark of a step, `ProfilerStep#5`.
STEP_MARK = "ProfilerStep"
#: What idle time is put down to. The call is the runtime's, a loader's mark, or a graph; the op is
#: the one around the call, or what the host ran.
IdleCause = tuple[str, str | None, str | None]  # cause, call, op
_Copy = tuple[HostSpan, DeviceSpan]  # the call, and what it started
#: Of each run of a device; None where the trace does not have it.
Launches = Sequence[HostSpan | None]

#: Of CUDA and HIP, and of the runtimes that follow them (`musaMalloc`, `aclrtMalloc`).
_CALL = r"^[a-z]+(?:Ext)?"
_ALLOCATOR = re.compile(
    _CALL + r"(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister)"
    r"|Mem(?:Alloc|Free|Host|Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree))"
    # SYCL's Unified Runtime, its predecessor and Level Zero, of Intel's devices.
    r"|^(?:ur|piext)USM\w*(?:Alloc|Free)|^zeMem(?:Alloc|Free)"
)
_WAITS = re.compile(
    _CALL + r"(?:\w*Synchronize|Memcpy(?!\w*Async)\w*)"
    r"|^(?:ur|pi)(?:EventWait|EventsWait|QueueFinish)|^cnrtQueueSync$"
)
_OPERATOR = re.compile(r"^(?!autograd::)\w+::")
#: A launch on an empty queue begins 10 to 20 us after the call began (V100, torch 1.9: 10 to 28).
LATENCY_US = 20.0
#: Eager PyTorch launches within this time: 99 % of pauses are below 0.3 ms in a V100's, 0.2 ms in
#: an MI300X's trace.
PAUSE_US = 1000.0
#: Work that is next in its stream begins sooner: 20 us at most in nine published traces (V100 to
#: H100, MI250, MI300X), 150 us to 460 ms in three where it waits for what they do not hold.
LATE_US = 100.0
_GRAPH_LAUNCH = re.compile("GraphLaunch")

#: Where waits overlap, that with the greater rank is seen.
_RANK = {"copies": 0, "synchronisation": 0, "allocator": 1, "input": 2}


def idle_causes(
    runs: Sequence[DeviceSpan],
    launches: Launches,
    windows: Sequence[tuple[float, float]],
    threads: Mapping[Thread, Sequence[HostSpan]],
    own_marks: Set[str],
) -> list[dict[IdleCause, float]]:
    """Return the idle time by cause in each window (begin, end; they do not overlap), all in us.

    `runs` are all that one device ran, in order, with what launched each. `threads` hold what the
    host did, `own_marks` are the steps'.
    """
    gaps, pauses = _Gaps.of(runs, launches, windows), _pauses(launches)
    launched = [(run, call) for run, call in zip(runs, launches, strict=True) if call is not None]
    copies = {call.correlation: run for run, call in launched if run.kind == "copy"}
    # Those that launched kernels.
    launching = dict.fromkeys(call.thread for run, call in launched if run.kind == "kernel")
    of_host = [wait for name in launching for wait in _waits(threads[name], own_marks, copies)]
    waits = [wait for wait in of_host if wait.cause[0] in _RANK]
    waits.sort(key=lambda wait: (_RANK[wait.cause[0]], wait.begin_us))
    long_ops = [wait for wait in of_host if wait.cause[0] not in _RANK]
    named = list(dict.fromkeys([*_OTHERS, *(wait.cause for wait in (*waits, *long_ops))]))
    numbers = {cause: number for number, cause in enumerate(named)}
    wait_at, op_at = (
        paint((numbers[cause], begin_us, end_us) for cause, begin_us, end_us in some)
        for some in (waits, long_ops)
    )
    credit = _Credit.of(gaps, waits, numbers)

    # From each of these times to the next there is one cause.
    begins, ends = np.array(windows).T
    edges = begins, ends, gaps.begins, gaps.host_ends, gaps.ends
    bounds = np.unique(np.concatenate((*edges, wait_at[0], op_at[0], *pauses, credit.times_us)))
    middles, lengths = (bounds[1:] + bounds[:-1]) / 2, np.diff(bounds)
    gap, window = number_at(gaps.begins, gaps.ends, middles), number_at(begins, ends, middles)
    idle = (gap >= 0) & (window >= 0)
    gap, window, times, lengths = gap[idle], window[idle], middles[idle], lengths[idle]

    # What the host did once the work was launched did not hold it up.
    until_launch = np.minimum(times, gaps.launches[gap])
    wait, op = painted_at(wait_at, until_launch), painted_at(op_at, until_launch)
    paused = number_at(*pauses, until_launch) >= 0
    credited = credit.at(gaps, gap, times)
    causes = np.where(paused, np.where(op >= 0, op, _HOST), _LAUNCHES)
    causes = np.where(gaps.seen[gap], causes, _NOT_SEEN)
    causes = np.where(credited >= 0, credited, causes)
    causes = np.where(wait >= 0, wait, causes)
    causes = np.where(times < gaps.host_ends[gap], causes, gaps.launched[gap])

    sums = np.bincount(window * len(named) + causes, lengths, len(windows) * len(named))
    return [
        {cause: float(time_us) for cause, time_us in zip(named, row, strict=True) if time_us}
        for row in sums.reshape(len(windows), len(named))
    ]


_OTHERS: tuple[IdleCause, ...] = (
    ("host", None, None),
    ("launches", None, None),
    ("not seen", None, None),
    ("queued", None, None),
    ("graph", None, None),
    ("unexplained", None, None),
    ("unexplained", "a CUDA graph", None),
)
_HOST, _LAUNCHES, _NOT_SEEN, _QUEUED, _, _UNEXPLAINED, _ = range(7)  # the next is in a graph


@dataclass
class _Gaps:
    """Gaps of a device, in order, in microseconds; arrays of one length."""

    begins: Times
    launches: Times  # when the call that launched the next work began; inf where it is not known
    host_ends: Times  # until here the host held the next work up
    ends: Times
    seen: Flags  # whether it is known what held the next work up
    measured: Flags  # whether the gap's beginning is in the trace
    launched: Numbers  # the cause of what follows `host_ends`

    @classmethod
    def of(
        cls,
        runs: Sequence[DeviceSpan],
        launches: Launches,
        windows: Sequence[tuple[float, float]],
    ) -> _Gaps:
        """The device's gaps, with those before its first and after its last work in a window."""
        starts, ends = span_times(runs)
        ends = np.maximum.accumulate(ends)
        first, last = min(windows[0][0], starts[0]), max(windows[-1][1], ends[-1])
        begins, ends = np.concatenate(([first], ends)), np.concatenate((starts, [last]))
        kept = np.flatnonzero(ends > begins)
        begins, ends = begins[kept], ends[kept]

        or_none = [*launches, None]
        calls = [or_none[number] for number in kept.tolist()]
        launched = np.array([call.begin_us if call else np.inf for call in calls])
        arrived = np.array([max(c.end_us, c.begin_us + LATENCY_US) if c else np.inf for c in calls])
        arrived = np.clip(arrived, begins, ends)
        in_graph, late = _within_graphs(launches)[kept], ends - arrived > LATE_US
        causes = np.where(late, _UNEXPLAINED, _QUEUED) + in_graph
        last_of_all = kept == len(runs)
        seen = np.isfinite(launched) | (last_of_all & any(launches))
        return cls(begins, launched, arrived, ends, seen, kept > 0, causes)


def _within_graphs(launches: Launches) -> Flags:
    """Whether a graph's launch had begun to run before each work, and one after the last."""
    first: dict[int, int] = {}
    within = np.zeros(len(launches) + 1, dtype=bool)
    for number, call in enumerate(launches):
        if call is not None and _GRAPH_LAUNCH.search(call.name):
            within[number] = first.setdefault(id(call), number) < number
    return within


@dataclass
class _Credit:
    """Idle time that a wait accounts for from when the device ran dry in it.

    Its clock runs while the host holds the device up, and stands still otherwise.
    """

    clock: Times  # at each gap's beginning
    begins: Times  # on the clock
    ends: Times
    numbers: Numbers  # of causes
    times_us: Times  # where it is used up

    @classmethod
    def of(cls, gaps: _Gaps, waits: Sequence[Wait], numbers: Mapping[IdleCause, int]) -> _Credit:
        held_up = gaps.host_ends - gaps.begins
        clock = np.concatenate(([0.0], np.cumsum(held_up)))[:-1]
        dried = np.where((held_up > 0) & gaps.measured, np.arange(len(clock)), -1)
        dried = np.maximum.accumulate(dried)
        parts: list[tuple[float, float, int]] = []
        for wait in sorted(waits, key=lambda wait: wait.begin_us):
            after = int(np.searchsorted(gaps.begins, wait.end_us, side="right"))
            gap = int(dried[after - 1]) if after else -1
            if wait.cause[0] == "input" or gap < 0 or gaps.begins[gap] < wait.begin_us:
                continue
            if gaps.launches[gap] < wait.begin_us:
                continue  # the device ran dry since the launch before came late
            begin = float(clock[gap])
            end = begin + wait.end_us - wait.begin_us
            if parts and parts[-1][1] >= end:
                continue  # an earlier wait accounts for it
            if parts and parts[-1][1] > begin:
                parts[-1] = (parts[-1][0], begin, parts[-1][2])
            parts.append((begin, end, numbers[wait.cause]))
        begins, ends, causes = np.array(parts).reshape(-1, 3).T
        used_up = np.searchsorted(clock, ends, side="right") - 1
        times_us = gaps.begins[used_up] + np.minimum(ends - clock[used_up], held_up[used_up])
        return cls(clock, begins, ends, causes.astype(int), times_us)

    def at(self, gaps: _Gaps, gap: Numbers, times: Times) -> Numbers:
        now = self.clock[gap] + times - gaps.begins[gap]
        part = number_at(self.begins, self.ends, now)
        return np.where(part >= 0, np.append(self.numbers, -1)[part], -1)


def _pauses(launches: Launches) -> tuple[Times, Times]:
    """Begins and ends of times in which nothing was launched."""
    calls = [call for call in launches if call is not None]
    calls.sort(key=lambda call: call.begin_us)
    begins = np.array([*(call.begin_us for call in calls), np.inf])
    ends = np.array([-np.inf, *(call.end_us + LATENCY_US for call in calls)])
    ends = np.maximum.accumulate(ends)
    long = begins - ends > PAUSE_US
    return ends[long], begins[long]


# What the host did


class Wait(NamedTuple):
    """An interval of a launching thread in which it launches nothing."""

    cause: IdleCause
    begin_us: float
    end_us: float


def _waits(
    spans: Sequence[HostSpan], own_marks: Set[str], copies: Mapping[int | None, DeviceSpan]
) -> Iterator[Wait]:
    """Yield what held the launches of one thread up, and its outermost operators if they are long.

    `own_marks` are names of marks that say nothing about a wait, such as the steps' own; `copies`
    are the device's by correlation.
    """
    open_spans: list[HostSpan] = []  # ops and marks, the outer ones first
    last_copy: _Copy | None = None
    for span in spans:
        while open_spans and open_spans[-1].end_us <= span.begin_us:
            open_spans.pop()
        around = [outer for outer in open_spans if outer.end_us > span.begin_us]
        operator = next(filter(_is_operator, around), None)
        if span.kind == "call":
            if operator is not None and operator.end_us < span.end_us:
                operator = None
            if (copy := copies.get(span.correlation)) is not None:
                last_copy = span, copy
            if (kind := _kind_of_call(span, last_copy, operator)) is not None:
                marks = (
                    mark.name
                    for mark in reversed(around)
                    if mark.kind == "mark"
                    and mark.name not in own_marks
                    and not mark.name.startswith(STEP_MARK)
                )
                name = next(marks, None) if operator is None else operator.name
                yield Wait((kind, span.name, name), span.begin_us, span.end_us)
            continue
        if span.loads:
            yield Wait(("input", span.name, None), span.begin_us, span.end_us)
        is_long = span.end_us - span.begin_us > PAUSE_US
        if operator is None and is_long and _is_operator(span):
            yield Wait(("host", None, span.name), span.begin_us, span.end_us)
        open_spans.append(span)


def _is_operator(span: HostSpan) -> bool:
    return span.kind == "op" and _matches(_OPERATOR, span.name)


def _kind_of_call(call: HostSpan, last_copy: _Copy | None, operator: HostSpan | None) -> str | None:
    """What a call within `operator` waits for, None where it does not."""
    if _matches(_ALLOCATOR, call.name):
        return "allocator"
    waits = _matches(_WAITS, call.name)
    if last_copy is None:
        return "synchronisation" if waits else None
    copying, copy = last_copy
    of_copy = "copies" if copy.direction == "host to device" else "synchronisation"
    if copying is call:
        # A call that is still running when its copy begins waits, whatever its name says.
        return of_copy if waits or copy.begin_us < call.end_us else None
    if not waits:
        return None
    is_apart = operator is None or copying.begin_us < operator.begin_us
    return "synchronisation" if is_apart else of_copy


@cache
def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None
