"""The ops of a trace's steps, one row per op and shape: their time, and the work that it bought.

An op's time is what the kernels that it launched took, each its own duration; its exclusive time
counts each nanosecond of a device for one op only. On a trace without a device it is the op's own
time on the host. Rates are work over time, never over exclusive time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from analysis.traces.steps import StepSpans
from bench.profilers.ops.device_time import DeviceTime
from bench.profilers.ops.op_join import CallsInOrder, Share, Work, join
from bench.profilers.ops.op_nest import Nest
from bench.profilers.ops.timed_step import Kind, SeenOp
from bench.profilers.traces import HostSpan, Trace
from bench.records.complexity import CalledOp, CallWork, OpWork, plain_label
from bench.records.profile import COMMUNICATION

_WORK = ("flops", "elementwise_flops", "eager_bytes", "fused_bytes")
_SUMMED = (*_WORK, "causal_skipped_flops")
_NOT_IN_MODEL = "no call of the model: a view, an allocation, or the backend's own way"
_WHY_NOT = {
    Kind.REGION: "compiled: ops fused into the graph have no times of their own",
    Kind.KERNEL: "launched by no op: part of a compiled graph or of a CUDA graph, or its launch is "
    "not in the trace",
}
_FRACTION = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e-\d+")
#: Dispatched on to an op of a backend, whose name says whether it is transposed.
_CONVOLUTIONS = frozenset({"convolution", "_convolution"})
#: Batch norms of backends; their backward ops are of training alone (derivatives.yaml).
_NORMS = frozenset({"cudnn_batch_norm", "miopen_batch_norm"})
_TRAINED = frozenset(f"{name}_backward" for name in _NORMS)
#: Their values: none of input, weight, bias and running statistics; training, momentum, epsilon.
_TRAINING = ("", "", "", "", "", "True", "0.5", "0.5")


@dataclass(frozen=True)
class OpRow:
    """One op with one set of shapes; all figures are means per step, of all its calls together.

    `kernels` are what ran, with the time of each, the longest first. The work is None with its
    reason in `missing`. `flops` are algorithmic; `fused_bytes` are the op's share of the step's
    fused traffic where the model is known, else the least that the op can move.
    """

    op: CalledOp
    label: str
    calls: float
    time_s: float
    exclusive_s: float
    kernels: tuple[tuple[str, float], ...]
    flops: float | None
    elementwise_flops: float | None
    eager_bytes: float | None
    fused_bytes: float | None
    causal_skipped_flops: float
    missing: Mapping[str, str] = field(default_factory=dict)


class OpTable:
    """The ops of some steps of one trace; times are of its device, or of the host without one."""

    def __init__(self, steps: Sequence[StepSpans], trace: Trace) -> None:
        self._on_device = bool(trace.device)
        # Steps overlap on the device: where two compute at once it counts for one.
        device = DeviceTime(run for step in steps for run in step.device)
        self._steps = [self._nested(step, device, trace.launches) for step in steps]

    def _nested(
        self, step: StepSpans, device: DeviceTime, launches: Mapping[int, HostSpan]
    ) -> _Step:
        nest = Nest(step.host, timed=not self._on_device)
        device.give_to(nest, launches, step.device)
        shown = _shown_by_backward(nest.tops)
        timed = (op for top in nest.tops for op in _timed(top))
        called = {
            id(op): _called(op, op.span, shown)
            for op in timed
            if op.kind is Kind.OP and op.span is not None
        }
        return _Step(nest.tops, called)

    @property
    def ops(self) -> tuple[CalledOp, ...]:
        """Every op that took time, once: what `bench.cost.called.work_of` is asked for."""
        return tuple(dict.fromkeys(op for step in self._steps for op in step.called.values()))

    def rows(self, work: Mapping[CalledOp, OpWork | str]) -> tuple[OpRow, ...]:
        """Return the rows, longest first, with the work of each op by itself.

        An op whose work is not known goes with the one around it, up to the first that is.
        """
        return self._rows(lambda step: _ByItself(step, work), work)

    def rows_of_model(
        self, calls: Sequence[CallWork], work: Mapping[CalledOp, OpWork | str]
    ) -> tuple[OpRow, ...]:
        """Return the rows, longest first, with the work of a known model's step.

        `calls` are `bench.cost.op_work` of the configuration that the trace is of. What the model
        does not have, such as another optimizer, has the work of each op by itself.
        """
        return self._rows(lambda step: _InModel(CallsInOrder(calls), _ByItself(step, work)), work)

    def _rows(
        self, work_in: Callable[[_Step], Work], reasons: Mapping[CalledOp, OpWork | str]
    ) -> tuple[OpRow, ...]:
        sums: dict[_Key, _Sum] = {}
        for step in self._steps:
            for share in join(step.tops, work_in(step)):
                if not (share.runs or (share.time_s and not self._on_device)):
                    continue  # it ran on the host, beside the device, or not at all
                key = _key(share, step, reasons)
                sums.setdefault(key, _Sum()).add(share)
        count = len(self._steps)
        rows = (_row(key, total, count) for key, total in sums.items())
        return tuple(sorted(rows, key=lambda row: -row.time_s))


@dataclass(frozen=True)
class _Step:
    tops: Sequence[SeenOp]
    called: Mapping[int, CalledOp]  # by the identity of the op that was seen


@dataclass(frozen=True)
class _ByItself:
    """The work of each op alone."""

    step: _Step
    work: Mapping[CalledOp, OpWork | str]

    def has(self, op: SeenOp) -> bool:
        """Return whether the work of `op` is known."""
        # Autocast casts what an op is given, then calls the op itself.
        casts = any(inner.name == op.name for inner in op.inner)
        return not casts and self._known(op) is not None

    def take(self, op: SeenOp) -> OpWork:
        """Return that work."""
        known = self._known(op)
        if known is None:
            raise KeyError(op.name)
        return known

    def _known(self, op: SeenOp) -> OpWork | None:
        called = self.step.called.get(id(op))
        work = self.work.get(called) if called is not None else None
        return work if isinstance(work, OpWork) else None


@dataclass(frozen=True)
class _InModel:
    """The work of a model's calls; of an op with none of them inside, its own."""

    calls: CallsInOrder
    rest: _ByItself

    def has(self, op: SeenOp) -> bool:
        """Return whether the work of `op` is known."""
        if self.calls.has(op):
            return True
        return self.rest.has(op) and not any(map(self.calls.has, op.everything()))

    def take(self, op: SeenOp) -> OpWork:
        """Return that work."""
        return self.calls.take(op) if self.calls.has(op) else self.rest.take(op)


#: What the shares of one row have in common: op, label, why its work is not known.
_Key = tuple[CalledOp, str, str | None]


class _Sum:
    """The shares of one row, added up."""

    def __init__(self) -> None:
        self.calls = 0
        self.time_s = 0.0
        self.exclusive_s = 0.0
        self.kernels: defaultdict[str, float] = defaultdict(float)
        self.work = dict.fromkeys(_SUMMED, 0)

    def add(self, share: Share) -> None:
        self.calls += 1
        self.time_s += share.time_s
        self.exclusive_s += share.exclusive_s
        for run in share.runs:
            self.kernels[run.short_name] += run.duration_us / 1e6
        if share.call is not None:
            for name in _SUMMED:
                self.work[name] += getattr(share.call, name)


def _key(share: Share, step: _Step, reasons: Mapping[CalledOp, OpWork | str]) -> _Key:
    seen = share.seen
    op = step.called.get(id(seen)) or CalledOp(seen.name, seen.phase)
    if any(run.communicates for run in share.runs):
        return op, COMMUNICATION, "exchanges data with other ranks"
    if share.call is not None:
        return op, share.call.label, None
    if seen.kind is not Kind.OP:
        label = "compiled graph" if seen.kind is Kind.REGION else seen.name
        return op, label, _WHY_NOT[seen.kind]
    # Of an op and what it called, the one that did most of it says why.
    longest = max(share.parts, key=lambda part: part.own_s)
    why = reasons.get(step.called.get(id(longest), op))
    return op, plain_label(seen.name), why if isinstance(why, str) else _NOT_IN_MODEL


def _row(key: _Key, total: _Sum, steps: int) -> OpRow:
    op, label, why_not = key
    kernels = ((name, time_s / steps) for name, time_s in total.kernels.items())
    work = {name: total.work[name] / steps for name in _SUMMED} if why_not is None else {}
    return OpRow(
        op=op,
        label=label,
        calls=total.calls / steps,
        time_s=total.time_s / steps,
        exclusive_s=total.exclusive_s / steps,
        kernels=tuple(sorted(kernels, key=lambda kernel: -kernel[1])),
        flops=work.get("flops"),
        elementwise_flops=work.get("elementwise_flops"),
        eager_bytes=work.get("eager_bytes"),
        fused_bytes=work.get("fused_bytes"),
        causal_skipped_flops=work.get("causal_skipped_flops", 0.0),
        missing={} if why_not is None else dict.fromkeys(_WORK, why_not),
    )


def _timed(op: SeenOp) -> Iterator[SeenOp]:
    """What took time in `op`, itself or in what it called; outer ones last."""
    inner = [timed for one in op.inner for timed in _timed(one)]
    yield from inner
    if inner or op.own_s or op.runs:
        yield op


def _called(seen: SeenOp, span: HostSpan, shown: _Shown) -> CalledOp:
    op = CalledOp(
        name=seen.name,
        phase=seen.phase,
        dims=span.dims,
        types=span.types,
        concrete=None if span.concrete is None else _whole(span.concrete),
        strides=span.strides,
    )
    if span.concrete is not None:
        return op
    if seen.name.endswith("convolution_backward"):
        called = [inner.name for inner in seen.inner]
        asked = tuple(f"{seen.name}_{of}" in called for of in ("input", "weight", "bias"))
        return replace(op, output_mask=asked) if any(asked) else op
    if "conv" in seen.name and seen.name not in _CONVOLUTIONS:
        return replace(op, result=shown.results.get(span.sequence))
    if seen.name in _NORMS and span.sequence in shown.trained:
        return replace(op, concrete=_TRAINING)
    return op


class _Shown:
    """What the backward pass shows of its forward ops, by their sequence number."""

    def __init__(self) -> None:
        self.results: dict[int | None, tuple[int, ...]] = {}
        self.trained: set[int | None] = set()


def _shown_by_backward(tops: Iterable[SeenOp]) -> _Shown:
    """Shapes of what convolutions returned, their gradients', and batch norms that trained."""
    shown = _Shown()
    for op in (op for top in tops for op in top.everything()):
        span = op.span
        if span is None or span.sequence is None or op.kind is not Kind.WRAPPER:
            continue
        if "ConvolutionBackward" in op.name and span.dims and span.dims[0]:
            shown.results[span.sequence] = tuple(span.dims[0])
        if any(inner.name in _TRAINED for inner in op.inner):
            shown.trained.add(span.sequence)
    return shown


@cache
def _whole(concrete: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fractions as one of them: no work depends on them, and an optimizer's change every step."""
    return tuple(
        _FRACTION.sub(lambda n: n[0] if float(n[0]).is_integer() else "0.5", value)
        if isinstance(value, str)
        else value
        for value in concrete
    )
