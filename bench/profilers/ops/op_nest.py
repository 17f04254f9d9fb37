"""From a trace's intervals to nested ops, with their phases."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Protocol

from bench.profilers.traces import DeviceSpan, HostSpan
from bench.profilers.traces.trace import HostKind
from bench.records import Copies, Phase

#: What autograd runs: an engine's function around each node; up to torch 1.9 the node alone.
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|.*(Backward\d*|AccumulateGrad)$")
_UPDATE = "Optimizer.step#"
#: The mark that inductor's code sets around a graph; its hash follows.
_COMPILED = "## Call CompiledFxGraph"


@dataclass(slots=True)
class _Open:
    """An op of a thread, and the one around it."""

    end_us: float
    op: SeenOp
    around: _Open | None


class Nest:
    """The host's intervals of one step as trees of ops; `tops` are the outermost, in order.

    `by_id` finds the op of an external id. An op that autograd called is backward's, and so is what
    runs in a thread that autograd began: sums of gradients have no node. The optimizer's are those
    in torch's mark around its step, unless that runs the model too, and what ran after autograd's
    last; anything else is the forward pass's. Without autograd and without the mark no phase is
    known. Where `timed` is False the ops have no time of their own.
    """

    def __init__(self, spans: Iterable[HostSpan], *, timed: bool) -> None:
        host = [span for span in spans if span.kind != "call"]
        backward = [span for span in host if _is_backward(span)]
        self._backward_begins = sorted(span.begin_us for span in backward)
        self._backward_end = max((span.end_us for span in backward), default=None)
        self._timed = timed
        self.by_id: dict[int, SeenOp] = {}
        self.tops: list[SeenOp] = []
        self._threads: dict[Any, tuple[list[float], list[_Open]]] = {}
        threads: defaultdict[Any, list[HostSpan]] = defaultdict(list)
        for span in sorted(host, key=_order):
            threads[span.thread].append(span)
        self._of_autograd = {
            thread for thread, (first, *_) in threads.items() if _is_backward(first)
        }
        for thread, in_order in threads.items():
            self._threads[thread] = self._add(in_order)

    def at(self, thread: Any, time_us: float) -> SeenOp | None:
        """Return the innermost op that `thread` was in."""
        begins_us, entries = self._threads.get(thread, ([], []))
        position = bisect_right(begins_us, time_us) - 1
        entry = entries[position] if position >= 0 else None
        while entry is not None and time_us >= entry.end_us:
            entry = entry.around
        return None if entry is None else entry.op

    def _add(self, spans: Sequence[HostSpan]) -> tuple[list[float], list[_Open]]:
        around: _Open | None = None
        entries = []
        for span in spans:
            while around is not None and span.begin_us >= around.end_us:
                around = around.around
            op = self._op(span, None if around is None else around.op)
            if around is None:
                self.tops.append(op)
            else:
                outer = around.op
                outer.inner.append(op)
                outer.own_s = outer.exclusive_s = max(0.0, outer.own_s - op.own_s)
            around = _Open(span.end_us, op, around)
            entries.append(around)
        return [span.begin_us for span in spans], entries

    def _op(self, span: HostSpan, around: SeenOp | None) -> SeenOp:
        name, kind = _name_and_kind(span.name, span.kind)
        own_s = (span.end_us - span.begin_us) / 1e6 if self._timed else 0.0
        op = SeenOp(
            name=name,
            kind=kind,
            phase=self._phase(span, around),
            shapes=_shapes(span.dims or ()),
            own_s=own_s,
            exclusive_s=own_s,
            span=span,
        )
        if span.external_id is not None:
            self.by_id[span.external_id] = op
        return op

    def _phase(self, span: HostSpan, around: SeenOp | None) -> Phase | None:
        if around is not None and around.phase == "backward":
            return "backward"
        if _is_backward(span) or span.thread in self._of_autograd:
            return "backward"
        if (around is not None and around.phase == "optimizer") or self._updates(span):
            return "optimizer"
        if self._backward_end is None:
            return None
        return "optimizer" if span.begin_us >= self._backward_end else "forward"

    def _updates(self, span: HostSpan) -> bool:
        """Whether `span` is an optimizer's step; one with a closure runs the model inside."""
        first_after = bisect_right(self._backward_begins, span.begin_us)
        ran_model = self._backward_begins[first_after : first_after + 1]
        return span.name.startswith(_UPDATE) and not (ran_model and ran_model[0] < span.end_us)


def op_names(spans: Iterable[HostSpan]) -> list[str]:
    """Return the name of every op among `spans`, however deep it is nested."""
    named = (_name_and_kind(span.name, span.kind) for span in spans if span.kind != "call")
    return [name for name, kind in named if kind is Kind.OP]


def _is_backward(span: HostSpan) -> bool:
    return span.kind == "op" and _autograd_ran(span.name)


@cache
def _autograd_ran(name: str) -> bool:
    return _BACKWARD.match(name) is not None


def _order(span: HostSpan) -> tuple[float, float, int]:
    """The outer of two intervals first; ops are numbered as they begin."""
    return span.begin_us, -span.end_us, span.external_id or 0


@cache
def _name_and_kind(printed: str, kind: HostKind) -> tuple[str, Kind]:
    if printed.startswith(_COMPILED):
        return "CompiledFxGraph", Kind.REGION
    is_autograds = printed.startswith(("autograd::", "torch::autograd::"))
    if kind == "op" and "::" in printed and not is_autograds:
        return printed.removeprefix("aten::").replace("::", "."), Kind.OP
    return printed, Kind.WRAPPER


@cache
def _shapes(printed: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    """The arguments that are tensors with dimensions; some versions nest those of lists."""
    return tuple(
        tuple(shape) for shape in printed if shape and all(isinstance(n, int) for n in shape)
    )


class Kind(Enum):
    """What decides how an op's own time is found."""

    OP = "an operator of torch or of a library"
    REGION = "a graph that torch.compile made: the fused ops have no times of their own"
    KERNEL = "a kernel or copy that no operator launched"
    WRAPPER = "autograd, or a mark: its own time belongs to no op"


@dataclass(slots=True)
class SeenOp:
    """`own_s` is the time that passed in none of `inner`. `name` is without torch's `aten::`.

    On a device it is the time of `runs`, the kernels and copies that this op itself launched, each
    its own duration. `exclusive_s` is what is left of it where a nanosecond counts for one op only:
    less if the device ran several things at once.
    """

    name: str
    kind: Kind
    phase: Phase | None
    shapes: tuple[tuple[int, ...], ...]
    own_s: float = 0.0
    inner: list[SeenOp] = field(default_factory=list)
    exclusive_s: float = 0.0
    runs: list[DeviceSpan] = field(default_factory=list)
    span: HostSpan | None = None  # where it is from a trace

    def everything(self) -> Iterator[SeenOp]:
        """Yield the op and all inside, outer ones first."""
        yield self
        for op in self.inner:
            yield from op.everything()


#: Fields of `bench.records.OpProfile` that only a tool which sees the device can tell.
DEVICE_FIGURES = ("device_busy_share", "launch_gap_s", "copies")


@dataclass
class TimedStep:
    """One step under a tool; `missing` says why one of `DEVICE_FIGURES` is None.

    `kernels` is the number of those that the device ran, 0 where it has none.
    """

    wall_s: float
    ops: Sequence[SeenOp]
    kernels: int = 0
    busy_s: float | None = None
    launch_gap_s: float | None = None
    copies: tuple[Copies, ...] | None = None
    missing: dict[str, str] = field(default_factory=dict)


class Recorder(Protocol):
    """Runs one step and times its ops."""

    method: str

    def record(self) -> TimedStep:
        """Run the step once, the device synchronised at both ends."""
