"""What the host did that let a device run dry: loaders, allocator calls, calls that wait, copies.

Only threads that launch work of a device count: another thread's calls, such as those of a
communication library's watchdog, do not hold launches up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from analysis.traces.device_work import DeviceWork, Numbers, Thread, Times
from analysis.traces.steps import MARK
from bench.profilers.traces import DeviceSpan, HostSpan, Trace

WaitKind = Literal["copies", "synchronisation", "allocator", "input"]
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


@dataclass(frozen=True)
class Wait:
    """An interval of a launching thread in which it launches nothing."""

    kind: WaitKind
    begin_us: float
    end_us: float
    call: str  # the runtime's call, or the loader's mark
    op: str | None  # the outermost operator around it, else the innermost mark


class HostWaits:
    """The waits of a trace's threads, and the ops that surround them.

    `own_marks` are names of marks that say nothing about a wait, such as the steps' own.
    """

    def __init__(self, trace: Trace, own_marks: Set[str] = frozenset()) -> None:
        by_thread: dict[Thread, list[HostSpan]] = {}
        for span in trace.host:
            by_thread.setdefault(span.thread, []).append(span)
        self._threads = {
            thread: _ThreadWaits(spans, own_marks) for thread, spans in by_thread.items()
        }

    def of(self, work: DeviceWork) -> list[Wait]:
        """Return the waits of the threads that launched kernels of `work`."""
        threads = (self._threads[thread] for thread in work.threads)
        return [wait for thread in threads for wait in thread.waits(work.copies)]

    def long_ops(self, work: DeviceWork, longer_us: float) -> list[HostSpan]:
        """Return the outermost operators of the same threads that take longer than that."""
        ops = (op for thread in work.threads for op in self._threads[thread].ops)
        return [op for op in ops if op.end_us - op.begin_us > longer_us]


class _ThreadWaits:
    """One thread's waits."""

    def __init__(self, spans: Sequence[HostSpan], own_marks: Set[str]) -> None:
        self._spans = spans
        self._marks = [
            span
            for span in spans
            if span.kind == "mark" and span.name not in own_marks and not span.name.startswith(MARK)
        ]

    @cached_property
    def ops(self) -> list[HostSpan]:
        """Operators that no other operator surrounds."""
        kept: list[HostSpan] = []
        end_us = -np.inf
        for span in self._spans:
            if span.kind == "op" and span.begin_us >= end_us and _is_operator(span.name):
                kept.append(span)
                end_us = span.end_us
        return kept

    @cached_property
    def _op_begins(self) -> list[float]:
        return [op.begin_us for op in self.ops]

    def waits(self, copies: Mapping[int, DeviceSpan]) -> Iterator[Wait]:
        """Yield what held launches up; `copies` are the device's by correlation."""
        last_copy: _Copy | None = None
        for span in self._spans:
            if span.kind == "call":
                copy = None if span.correlation is None else copies.get(span.correlation)
                if copy is not None:
                    last_copy = span, copy
                kind = self._kind_of_call(span, last_copy)
                op = None if kind is None else self._around(span)
            else:
                kind = "input" if is_loader(span) else None
                op = None
            if kind is not None:
                yield Wait(kind, span.begin_us, span.end_us, span.name, op)

    def _kind_of_call(self, call: HostSpan, last_copy: _Copy | None) -> WaitKind | None:
        about = _call_kind(call.name)
        if about == "allocator":
            return "allocator"
        if last_copy is not None and last_copy[0] is call:
            copy = last_copy[1]
            # A call that is still running when its copy begins waits, whatever its name says.
            waits = about == "waits" or copy.begin_us < call.end_us
            return _kind_of_copy(copy) if waits else None
        if about is None:
            return None
        op = self._operator_around(call)
        if op is None or last_copy is None or last_copy[0].begin_us < op.begin_us:
            return "synchronisation"
        return _kind_of_copy(last_copy[1])

    def _operator_around(self, call: HostSpan) -> HostSpan | None:
        number = bisect_right(self._op_begins, call.begin_us) - 1
        if number < 0 or self.ops[number].end_us < call.end_us:
            return None
        return self.ops[number]

    def _around(self, call: HostSpan) -> str | None:
        op = self._operator_around(call)
        if op is not None:
            return op.name
        number = int(painted_at(self._innermost_marks, np.array([call.begin_us]))[0])
        return None if number < 0 else self._marks[number].name

    @cached_property
    def _innermost_marks(self) -> tuple[Times, Numbers]:
        return paint([(k, mark.begin_us, mark.end_us) for k, mark in enumerate(self._marks)])


def paint(waits: Sequence[tuple[int, float, float]]) -> tuple[Times, Numbers]:
    """Return bounds and the number that holds from each bound to the next; -1 is none.

    `waits` are (number, begin, end); where they overlap, the later in the list is seen.
    """
    bounds: Times = np.unique([time for _, begin, end in waits for time in (begin, end)])
    painted = np.full(len(bounds), -1)
    coming = sorted(range(len(waits)), key=lambda place: waits[place][1], reverse=True)
    open_places: list[int] = []  # negative, so that the latest in the list comes first
    for position, bound in enumerate(bounds.tolist()):
        while coming and waits[coming[-1]][1] <= bound:
            heappush(open_places, -coming.pop())
        while open_places and waits[-open_places[0]][2] <= bound:
            heappop(open_places)
        if open_places:
            painted[position] = waits[-open_places[0]][0]
    return bounds, painted


def painted_at(bounds_and_numbers: tuple[Times, Numbers], times: Times) -> Numbers:
    """Return the number that holds at each time."""
    bounds, numbers = bounds_and_numbers
    at_times: Numbers = np.append(numbers, -1)[np.searchsorted(bounds, times, side="right") - 1]
    return at_times


def _kind_of_copy(copy: DeviceSpan) -> WaitKind:
    return "copies" if _TO_DEVICE.search(copy.name) else "synchronisation"


@cache
def _is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None


def is_loader(span: HostSpan) -> bool:
    """Whether the span is a mark of a data loader, by its name."""
    return span.kind == "mark" and _loads(span.name)


@cache
def _loads(name: str) -> bool:
    return _INPUT.search(name) is not None


@cache
def _call_kind(name: str) -> Literal["allocator", "waits"] | None:
    if _ALLOCATOR.match(name):
        return "allocator"
    return "waits" if _WAITS.match(name) else None
