"""From a trace's intervals to nested ops: phases, own times, and the device's time of each."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, get_args

from bench.errors import UserError
from bench.profilers.traces.intervals import exclusive_us
from bench.profilers.traces.spans import DeviceSpan, Direction, HostKind, HostSpan, ProfilerTrace
from bench.records import Copies, Phase
from bench.records.complexity import CalledOp, OpWork

#: What autograd runs: an engine's function around each node; up to torch 1.9 the node alone.
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|.*(Backward\d*|AccumulateGrad)$")
_UPDATE = "Optimizer.step#"
#: The op in which a thread waits for a collective that it began.
_WAIT = "c10d_functional.wait_tensor"
#: The mark that inductor's code sets around a graph; its hash follows.
_COMPILED = "## Call CompiledFxGraph"
#: The graph's kernels on a processor, and library calls of one that is C++ throughout
#: (`cpp.enable_kernel_profile`).
_COMPILED_KERNEL = re.compile(r"(?:graph_\d+_)?(?:cpp|triton|halide)_|aoti_torch_")


class Kind(Enum):
    """What decides how an op's own time is found; the value says why its work may not be known."""

    OP = "not a call of the cost model: a view, an allocation, or the backend's own way"
    REGION = "compiled: ops fused into the graph have no times of their own"
    KERNEL = (
        "launched by no op: part of a compiled graph or of a CUDA graph, or its launch is not in "
        "the trace"
    )
    WRAPPER = "autograd, or a mark: its own time belongs to no op"
    LOADER = "the step waits for its data"
    COLLECTIVE = "communication: also waits for other ranks"


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
    end_us: float = 0.0
    around: SeenOp | None = field(default=None, compare=False, repr=False)
    called: CalledOp | None = None  # with its arguments, where these were traced
    work: OpWork | None = None  # where it was joined with it

    def everything(self) -> Iterator[SeenOp]:
        """Yield the op and all inside, outer ones first."""
        yield self
        for op in self.inner:
            yield from op.everything()


class Nest:
    """The host's intervals of one step as trees of ops; `tops` are the outermost, in order.

    `by_id` finds the op of an external id. An op that autograd called is backward's, and so is what
    runs in a thread that autograd began: sums of gradients have no node. The optimizer's are those
    in torch's mark around its step, unless that runs the model too, and what ran after autograd's
    last; anything else is the forward pass's. Without autograd and without the mark no phase is
    known. Where `timed` is False the ops have no time of their own. Else `beside` are a data
    loader's marks, with the time in which no op ran, and the collectives of a processor's backend,
    whose exclusive time is that in which neither an op ran nor a loader.
    """

    def __init__(self, spans: Iterable[HostSpan], *, timed: bool) -> None:
        seen = [span for span in spans if span.kind != "call"]
        host = [span for span in seen if not span.communicates]
        backward = [span for span in host if is_backward(span)]
        self._backward_begins = sorted(span.begin_us for span in backward)
        self._backward_end = max((span.end_us for span in backward), default=None)
        self._timed = timed
        self.by_id: dict[int, SeenOp] = {}
        self.tops: list[SeenOp] = []
        threads: defaultdict[Any, list[HostSpan]] = defaultdict(list)
        # The outer of two intervals first; ops are numbered as they begin.
        for span in sorted(host, key=lambda s: (s.begin_us, -s.end_us, s.external_id or 0)):
            threads[span.thread].append(span)
        self._of_autograd = {name for name, (first, *_) in threads.items() if is_backward(first)}
        self._threads = {name: self._add(in_order) for name, in_order in threads.items()}
        beside = [span for span in seen if timed and (span.loads or span.communicates)]
        beside.sort(key=lambda span: span.communicates)
        ran = list(_outermost(self.tops)) if beside else []
        alone_us = exclusive_us([*ran, *beside])[len(ran) :]
        self.beside = list(map(self._beside, beside, alone_us))

    def at(self, thread: Any, time_us: float) -> SeenOp | None:
        """Return the innermost op that `thread` was in."""
        begins_us, ops = self._threads.get(thread, ([], []))
        position = bisect_right(begins_us, time_us) - 1
        op = ops[position] if position >= 0 else None
        while op is not None and time_us >= op.end_us:
            op = op.around
        return op

    def _add(self, spans: Sequence[HostSpan]) -> tuple[list[float], list[SeenOp]]:
        around: SeenOp | None = None
        ops = []
        for span in spans:
            while around is not None and span.begin_us >= around.end_us:
                around = around.around
            op = self._op(span, around)
            # An op that waits for other ranks is none of the work of the op that called it.
            apart = around is None or op.kind is Kind.COLLECTIVE
            (self.tops if apart or around is None else around.inner).append(op)
            if around is not None:
                around.own_s = around.exclusive_s = max(0.0, around.own_s - op.own_s)
            around = op
            ops.append(op)
        return [span.begin_us for span in spans], ops

    def _beside(self, span: HostSpan, alone_us: float) -> SeenOp:
        """The span as an op of its own, in the phase of what began before it."""
        before = [
            (begins_us[number - 1], ops[number - 1].phase)
            for begins_us, ops in self._threads.values()
            if (number := bisect_left(begins_us, span.begin_us))
        ]
        _, phase = max(before, key=lambda begun: begun[0], default=(0.0, None))
        alone_s, whole_s = alone_us / 1e6, (span.end_us - span.begin_us) / 1e6
        if span.loads:
            return SeenOp(span.name, Kind.LOADER, phase, (), alone_s, [], alone_s)
        return SeenOp(span.name, Kind.COLLECTIVE, phase, (), whole_s, [], alone_s)

    def _op(self, span: HostSpan, around: SeenOp | None) -> SeenOp:
        name, kind = _name_and_kind(span.name, span.kind)
        own_s = (span.end_us - span.begin_us) / 1e6 if self._timed else 0.0
        if self._timed and name.endswith(_WAIT):
            kind = Kind.COLLECTIVE
        phase, shapes = self._phase(span, around), _shapes(span.dims or ())
        op = SeenOp(name, kind, phase, shapes, own_s, [], own_s, [], span, span.end_us, around)
        if span.external_id is not None:
            self.by_id[span.external_id] = op
        return op

    def _phase(self, span: HostSpan, around: SeenOp | None) -> Phase | None:
        outer = None if around is None else around.phase
        if outer == "backward" or is_backward(span) or span.thread in self._of_autograd:
            return "backward"
        if outer == "optimizer" or self._updates(span):
            return "optimizer"
        if self._backward_end is None:
            return None
        return "optimizer" if span.begin_us >= self._backward_end else "forward"

    def _updates(self, span: HostSpan) -> bool:
        """Whether `span` is an optimizer's step; one with a closure runs the model inside."""
        first_after = bisect_right(self._backward_begins, span.begin_us)
        ran_model = self._backward_begins[first_after : first_after + 1]
        return span.name.startswith(_UPDATE) and not (ran_model and ran_model[0] < span.end_us)


def _outermost(ops: Iterable[SeenOp]) -> Iterator[HostSpan]:
    """Yield when ops ran, or those inside of what is none."""
    for op in ops:
        if op.kind is Kind.WRAPPER:
            yield from _outermost(op.inner)
        elif op.span is not None:
            yield op.span


def several_ranks(trace: ProfilerTrace, ranks: int) -> str:
    """Return why a trace that was merged of `ranks` traces is refused."""
    return f"{trace.path}: steps of {ranks} processes; read each rank's own file"


def host_of_steps(trace: ProfilerTrace, marks: Sequence[HostSpan]) -> Sequence[HostSpan]:
    """Return what the thread of `marks` did, its collectives, and what autograd did for it.

    What other threads did beside a step that runs on the host is none of its time. Without marks
    the thread is that of the optimizer, else the one with the longest ops. Raises `UserError` where
    several processes take steps.
    """
    updates = [span for span in trace.host if span.name.startswith(_UPDATE)]
    ops = [span for span in trace.host if span.kind == "op"]
    first = {span.thread: span for span in reversed(ops)}
    of_autograd = {thread for thread, span in first.items() if is_backward(span)}
    of_autograd -= {span.thread for span in updates}
    took_us: defaultdict[Any, float] = defaultdict(float)
    for span in marks or updates or ops:
        if span.thread not in of_autograd:
            took_us[span.thread] += span.end_us - span.begin_us
    if (ranks := len({process for process, _ in took_us})) > 1:
        raise UserError(several_ranks(trace, ranks))
    if not took_us:
        return trace.host
    thread = max(took_us, key=lambda name: took_us[name])
    beside = {name for name in of_autograd if name[0] == thread[0]} | {thread}
    return [span for span in trace.host if span.communicates or span.thread in beside]


def op_names(spans: Iterable[HostSpan]) -> list[str]:
    """Return the name of every op among `spans`, however deep it is nested."""
    named = (_name_and_kind(span.name, span.kind) for span in spans if span.kind != "call")
    return [name for name, kind in named if kind is Kind.OP]


def is_backward(span: HostSpan) -> bool:
    """Whether autograd's engine ran it."""
    return span.kind == "op" and _autograd_ran(span.name) is not None


_autograd_ran = cache(_BACKWARD.match)


@cache
def _name_and_kind(printed: str, kind: HostKind) -> tuple[str, Kind]:
    if printed.startswith(_COMPILED):
        return "CompiledFxGraph", Kind.REGION
    if kind == "op" and _COMPILED_KERNEL.match(printed):
        return printed, Kind.REGION
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


class DeviceTime:
    """When devices were busy: kernels, copies and fills on any stream; times in seconds.

    `busy_s` and `gap_s`, the idle time between first and last interval, are sums over devices.
    """

    def __init__(self, runs: Iterable[DeviceSpan]) -> None:
        # Communication beside computing, and a copy beside a kernel, cost the step only what
        # nothing hides.
        self._runs = sorted(
            runs, key=lambda run: (run.kind != "kernel", run.communicates, run.begin_us)
        )
        of_device: defaultdict[int | str | None, list[DeviceSpan]] = defaultdict(list)
        for run in self._runs:
            of_device[run.device].append(run)
        self._exclusive_us: dict[int, float] = {}
        self.busy_s = self.gap_s = 0.0
        for ran in of_device.values():
            times_us = exclusive_us(ran)
            self._exclusive_us.update(zip(map(id, ran), times_us, strict=True))
            whole_us = max(run.end_us for run in ran) - min(run.begin_us for run in ran)
            self.busy_s += sum(times_us) / 1e6
            self.gap_s += (whole_us - sum(times_us)) / 1e6

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels, as `bench.records.kernel_names` spells them."""
        return [run.short_name for run in self._runs if run.kind == "kernel"]

    def give_to(
        self,
        nest: Nest,
        launches: Mapping[int, HostSpan],
        runs: Iterable[DeviceSpan] | None = None,
    ) -> None:
        """Add each interval to the op of `nest` that launched it; `launches` by correlation.

        `runs` are those of the step that `nest` is of, by default all.

        An op's time is what its intervals took, whatever ran beside them. Of intervals at the same
        time the first alone adds to the exclusive time. What no operator launched becomes an op of
        its own, named after the kernel.
        """
        for run in self._runs if runs is None else runs:
            op = _launcher(run, nest, launches)
            if op is None or op.kind is not Kind.OP:
                siblings = nest.tops if op is None else op.inner
                op = SeenOp(run.short_name, Kind.KERNEL, None if op is None else op.phase, ())
                siblings.append(op)
            op.own_s += run.duration_us / 1e6
            op.exclusive_s += self._exclusive_us[id(run)] / 1e6
            op.runs.append(run)

    def copies(self) -> tuple[Copies, ...] | None:
        """Return the copies by direction, longest first; None if the trace lacks their bytes."""
        copied = [run for run in self._runs if run.kind == "copy"]
        if any(run.size_bytes is None for run in copied):
            return None
        copies = [
            Copies(
                direction=direction,
                calls=len(runs),
                bytes=sum(run.size_bytes or 0 for run in runs),
                time_s=sum(run.duration_us for run in runs) / 1e6,
            )
            for direction in get_args(Direction)
            if (runs := [run for run in copied if run.direction == direction])
        ]
        return tuple(sorted(copies, key=lambda copy: -copy.time_s))


def _launcher(run: DeviceSpan, nest: Nest, launches: Mapping[int, HostSpan]) -> SeenOp | None:
    """The op that the run or its launch names, else the one that was open as it was launched."""
    launch = launches.get(run.correlation) if run.correlation is not None else None
    for identity in (run.external_id, launch and launch.external_id):
        if identity is not None and identity in nest.by_id:
            return nest.by_id[identity]
    return nest.at(launch.thread, launch.begin_us) if launch is not None else None
