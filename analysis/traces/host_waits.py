"""What the host did that let a device run dry: loaders, allocator calls, calls that wait, copies.

Only threads that launch work of a device count: another thread's calls, such as those of a
communication library's watchdog, do not hold launches up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from analysis.traces.device_work import Numbers, Thread, Times
from bench.profilers.traces import DeviceSpan, HostSpan, Trace

#: Torch's mark of a step, `ProfilerStep#5`.
STEP_MARK = "ProfilerStep"
#: What idle time is put down to. The call is the runtime's, a loader's mark, or a graph; the op is
#: the one around the call, or what the host ran.
IdleCause = tuple[str, str | None, str | None]  # cause, call, op
_Copy = tuple[HostSpan, DeviceSpan]  # the call, and what it started

_CALL = r"^(?:cuda|hip|cu)"
_ALLOCATOR = re.compile(
    _CALL + r"(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister)"
    r"|Mem(?:Alloc|Free|Host|Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree))"
)
_WAITS = re.compile(_CALL + r"(?:\w*Synchronize|Memcpy(?!\w*Async)\w*)")
_TO_DEVICE = re.compile(r"HtoD|HostToDevice|Host To Device", re.IGNORECASE)
#: Of torch, of Lightning, and what people call their own marks.
_INPUT = re.compile(
    r"DataLoader.*__next__|dataloader_next|\b(?:train|val)_next\b"
    r"|\b(?:data|batch)[ _-]?(?:load|fetch|wait)|\b(?:load|fetch|get|next)[ _-](?:data|batch)\b",
    re.IGNORECASE,
)
_OPERATOR = re.compile(r"^(?!autograd::)\w+::")


class Wait(NamedTuple):
    """An interval of a launching thread in which it launches nothing."""

    cause: IdleCause
    begin_us: float
    end_us: float


def thread_waits(trace: Trace, own_marks: Set[str] = frozenset()) -> dict[Thread, ThreadWaits]:
    """Return the waits of each thread of the host.

    `own_marks` are names of marks that say nothing about a wait, such as the steps' own.
    """
    by_thread: defaultdict[Thread, list[HostSpan]] = defaultdict(list)
    for span in trace.host:
        by_thread[span.thread].append(span)
    return {thread: ThreadWaits(spans, own_marks) for thread, spans in by_thread.items()}


class ThreadWaits:
    """One thread's waits, and the ops around them."""

    def __init__(self, spans: Sequence[HostSpan], own_marks: Set[str]) -> None:
        self._spans, self._own_marks = spans, own_marks

    def long_ops(self, longer_us: float) -> list[Wait]:
        """Return the outermost operators that take longer than that."""
        return [
            Wait(("host", None, op.name), op.begin_us, op.end_us)
            for op in self._ops
            if op.end_us - op.begin_us > longer_us
        ]

    def waits(self, copies: Mapping[int | None, DeviceSpan]) -> Iterator[Wait]:
        """Yield what held launches up; `copies` are the device's by correlation."""
        last_copy: _Copy | None = None
        for span in self._spans:
            if span.kind == "call":
                if (copy := copies.get(span.correlation)) is not None:
                    last_copy = span, copy
                if (kind := self._kind_of_call(span, last_copy)) is not None:
                    yield Wait((kind, span.name, self._around(span)), span.begin_us, span.end_us)
            elif is_loader(span):
                yield Wait(("input", span.name, None), span.begin_us, span.end_us)

    def _kind_of_call(self, call: HostSpan, last_copy: _Copy | None) -> str | None:
        """What the call waits for, if it does."""
        if _matches(_ALLOCATOR, call.name):
            return "allocator"
        waits = _matches(_WAITS, call.name)
        if last_copy is None:
            return "synchronisation" if waits else None
        copying, copy = last_copy
        of_copy = "copies" if _matches(_TO_DEVICE, copy.name) else "synchronisation"
        if copying is call:
            # A call that is still running when its copy begins waits, whatever its name says.
            return of_copy if waits or copy.begin_us < call.end_us else None
        if not waits:
            return None
        op = self._operator_around(call)
        return "synchronisation" if op is None or copying.begin_us < op.begin_us else of_copy

    @cached_property
    def _ops(self) -> list[HostSpan]:
        """Operators that no other operator surrounds."""
        kept: list[HostSpan] = []
        for span in self._spans:
            begins_outside = not kept or span.begin_us >= kept[-1].end_us
            if span.kind == "op" and begins_outside and _matches(_OPERATOR, span.name):
                kept.append(span)
        return kept

    def _operator_around(self, call: HostSpan) -> HostSpan | None:
        number = bisect_right(self._ops, call.begin_us, key=lambda op: op.begin_us) - 1
        return (
            self._ops[number] if number >= 0 and self._ops[number].end_us >= call.end_us else None
        )

    def _around(self, call: HostSpan) -> str | None:
        """The outermost operator around the call, else the innermost mark."""
        if (op := self._operator_around(call)) is not None:
            return op.name
        number = int(painted_at(self._marks, np.array([call.begin_us]))[0])
        return None if number < 0 else self._spans[number].name

    @cached_property
    def _marks(self) -> tuple[Times, Numbers]:
        """The innermost mark at each time."""
        return paint(
            [
                (number, span.begin_us, span.end_us)
                for number, span in enumerate(self._spans)
                if span.kind == "mark"
                and span.name not in self._own_marks
                and not span.name.startswith(STEP_MARK)
            ]
        )


def is_loader(span: HostSpan) -> bool:
    """Whether the span is a mark of a data loader, by its name."""
    return span.kind == "mark" and _matches(_INPUT, span.name)


def paint(intervals: Sequence[tuple[int, float, float]]) -> tuple[Times, Numbers]:
    """Return bounds and the number that holds from each bound to the next; -1 is none.

    `intervals` are (number, begin, end); where they overlap, the later in the list is seen.
    """
    bounds: Times = np.unique([time for _, begin, end in intervals for time in (begin, end)])
    painted = np.full(len(bounds), -1)
    edges = np.searchsorted(bounds, [times for _, *times in intervals]).tolist()
    for (number, *_), (first, last) in zip(intervals, edges, strict=True):
        painted[first:last] = number
    return bounds, painted


def painted_at(bounds_and_numbers: tuple[Times, Numbers], times: Times) -> Numbers:
    """Return the number that holds at each time."""
    bounds, numbers = bounds_and_numbers
    at_times: Numbers = np.append(numbers, -1)[np.searchsorted(bounds, times, side="right") - 1]
    return at_times


@cache
def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None
