"""Ops of steps joined with known work: each op once, each call of the cost model once.

An op's time is what the kernels that it launched took, each its own duration; its exclusive time
counts each nanosecond of a device for one op only. On a host it is the op's own time there. Rates
are work over time, never over exclusive time.

`op_times` adds up what was joined in several steps of a profile, `op_rows` that of a trace.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from operator import mul
from statistics import median, median_low
from typing import Any, TypeVar

from bench.profilers.traces.nest import DeviceTime, Kind, Nest, SeenOp
from bench.profilers.traces.spans import HostSpan, ProfilerTrace
from bench.profilers.traces.steps import StepSpans
from bench.records import OpTime, Phase, TracedOp
from bench.records.complexity import (
    WORK,
    CalledOp,
    CallWork,
    OpWork,
    is_attention,
    plain_label,
)
from bench.records.profile import COMMUNICATION, HOST_COPY, LOADER

#: The same mathematics under a backend's own name; the first of their shapes are alike.
_SAME = {
    name: same
    for same, names in {
        "batch_norm": "native_batch_norm _native_batch_norm_legit _batch_norm_with_update "
        "cudnn_batch_norm miopen_batch_norm",
        "batch_norm_backward": "native_batch_norm_backward batch_norm_backward "
        "cudnn_batch_norm_backward miopen_batch_norm_backward",
        "index_put": "index_put _index_put_impl_",
    }.items()
    for name in names.split()
}
#: Gradients of a convolution that have input and gradient in the other order.
_INPUT_FIRST = tuple(f"{name}_convolution_backward" for name in ("cudnn", "miopen", "mkldnn"))
_WORK = (*WORK, "causal_skipped_flops", "fp32_flops")
#: What ops are called that are none of torch's.
_LABELS = {Kind.REGION: "compiled graph", Kind.LOADER: LOADER, Kind.COLLECTIVE: COMMUNICATION}
_Key = TypeVar("_Key", bound=Hashable)
_WHY_NO_PHASE = "autograd's engine did not run in the step: a CUDA graph replays it whole"


class CallsInOrder:
    """The cost model's calls of a whole step; those that no timed op has taken yet are in line.

    `alone` is the work of ops by themselves: of one that is no call, nor any inside it.
    """

    def __init__(
        self, calls: Iterable[CallWork], alone: Mapping[CalledOp, OpWork | str] | None = None
    ) -> None:
        self._alone = alone or {}
        self._calls: defaultdict[Hashable, deque[CallWork]] = defaultdict(deque)
        for call in calls:
            self._calls[call.phase, _identity(call.op, call.shapes)].append(call)

    def take(self, op: SeenOp) -> OpWork | None:
        """Return the work of `op`: of the next call like it, or its own; None where neither is."""
        if line := self._line(op):
            return line.popleft()
        work = self._alone.get(op.called) if op.called and not _casts(op) else None
        if isinstance(work, OpWork) and not any(map(self._line, op.everything())):
            return work
        return None

    def _line(self, op: SeenOp) -> deque[CallWork] | None:
        if op.kind is not Kind.OP or not self._calls or _casts(op):
            return None
        return self._calls[op.phase, _identity(op.name, op.shapes)]


def _casts(op: SeenOp) -> bool:
    """Whether autocast casts what the op is given, then calls the op itself."""
    return any(inner.name == op.name for inner in op.inner)


def _identity(name: str, shapes: Sequence[tuple[int, ...]]) -> Hashable:
    """Return what a timed op and a modelled call have in common if they are the same."""
    if (sizes := _product_sizes(name, shapes)) is not None:
        return "product", *sizes
    if is_attention(name):  # queries, keys and values, after the result's gradient
        is_backward = name.endswith("_backward")
        return "attention", is_backward, tuple(shapes[: 3 + is_backward])
    if name in _SAME:
        return _SAME[name], tuple(shapes[:1])
    if name in ("convolution_backward", *_INPUT_FIRST):  # gradient, input and weight
        first = (*reversed(shapes[:2]),) if name in _INPUT_FIRST else tuple(shapes[:2])
        return "convolution_backward", (*first, *shapes[2:3])
    # The sum of two gradients is made in place of one of them where nothing else holds it.
    return name.rstrip("_"), tuple(shapes)


def _product_sizes(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int, int] | None:
    """Return (rows, summed over, columns) of a linear layer's product, however it is dispatched.

    `linear` has the weight as (out, in), after images of any dimensions; `addmm` has a bias first.
    """
    if name == "linear" and len(shapes) > 1:
        (*leading, summed), weight = shapes[0], shapes[1]
        return prod(leading), summed, weight[0]
    operands = {"mm": shapes[:2], "addmm": shapes[1:3]}.get(name, ())
    if [len(shape) for shape in operands] == [2, 2]:
        left, right = operands
        return left[0], left[1], right[1]
    return None


def join(tops: Iterable[SeenOp], work: CallsInOrder) -> list[SeenOp]:
    """Return what every op of a step took, no op twice, with the work it did.

    `work` says which op is a unit of work; each of its calls answers for another op. Times and runs
    are then those of the op and of what it called, which are in `inner`, the op itself first.
    """
    return [joined for top in tops for joined in _joined(top, work)]


def _joined(op: SeenOp, calls: CallsInOrder) -> Iterator[SeenOp]:
    if (work := calls.take(op)) is not None:
        # Autograd copies the input of an op in place that the backward pass needs: another call.
        others, copies = [], []
        for inner in op.inner:
            clones = op.name.endswith("_") and inner.name == "clone"
            if clones and (copying := calls.take(inner)) is not None:
                copies.append(_with(inner, _everything(inner.inner), copying))
            else:
                others.append(inner)
        yield _with(op, _everything(others), work)
        yield from copies
        return
    called = join(op.inner, calls)
    matched = [other for other in called if other.work is not None]
    if op.kind is Kind.WRAPPER:
        yield from called
    elif op.kind is Kind.OP and not matched:
        yield _with(op, _everything(op.inner))
    elif op.kind is Kind.OP and len(matched) == 1:
        # The way to the one op that does the work: `conv2d` to `convolution`.
        whole = _with(matched[0], [op], matched[0].work)
        yield from (whole if other is matched[0] else other for other in called)
    else:
        yield _with(op, ())
        yield from called


def _everything(ops: Iterable[SeenOp]) -> Iterator[SeenOp]:
    return (part for op in ops for part in op.everything())


def _with(op: SeenOp, others: Iterable[SeenOp], work: OpWork | None = None) -> SeenOp:
    """The op with the times and runs of others, and its work."""
    parts = [op, *others]
    return replace(
        op,
        own_s=sum(part.own_s for part in parts),
        exclusive_s=sum(part.exclusive_s for part in parts),
        runs=[run for part in parts for run in part.runs],
        inner=parts,
        work=work,
    )


def _label(op: SeenOp) -> str:
    """What the op is called where nothing is known of its work."""
    return plain_label(op.name) if op.kind is Kind.OP else _LABELS.get(op.kind, op.name)


def _by_key(ops: Iterable[SeenOp], key: Callable[[SeenOp], _Key]) -> dict[_Key, list[SeenOp]]:
    alike: dict[_Key, list[SeenOp]] = {}
    for op in ops:
        alike.setdefault(key(op), []).append(op)
    return alike


def _sums(ops: Sequence[SeenOp]) -> dict[str, float]:
    times = {
        "calls": len(ops),
        "time_s": sum(op.own_s for op in ops),
        "exclusive_s": sum(op.exclusive_s for op in ops),
    }
    return {**times, **{name: sum(getattr(op.work, name, 0) for op in ops) for name in _WORK}}


# Of a profile


def op_times(steps: Sequence[Iterable[SeenOp]], scales: Sequence[float]) -> tuple[OpTime, ...]:
    """Return one record per kind, op and phase, longest first: medians of the steps' sums.

    `steps` are what `join` returned. Each one's times are first multiplied by its part of `scales`.
    A kind that a step lacks counts as zero in it. Where only some calls of an op are among the cost
    model's, they are a record of their own. Ops without work and time are left out.
    """
    of_steps = [_by_key(ops, _kind) for ops in steps]
    kinds = dict.fromkeys(kind for step in of_steps for kind in step)
    times = [
        _op_time(kind, [_sums(step.get(kind, ())) for step in of_steps], scales) for kind in kinds
    ]
    kept = [time for time in times if time.calls and (time.flops is not None or time.time_s)]
    return tuple(sorted(kept, key=lambda time: -time.time_s))


def _kind(op: SeenOp) -> tuple[str, str, Phase | None, str | None]:
    """Label, op, phase, and why its work is not known."""
    copies_only = op.runs and all(run.copies_to_or_from_host for run in op.runs)
    if isinstance(work := op.work, CallWork):
        return HOST_COPY if copies_only else work.label, work.op, work.phase, None
    if (own := op.inner[0].runs) and all(run.communicates for run in own):
        return COMMUNICATION, op.name, op.phase, Kind.COLLECTIVE.value
    label = HOST_COPY if copies_only else _label(op)
    return label, op.name, op.phase, op.kind.value


def _op_time(
    kind: tuple[str, str, Phase | None, str | None],
    steps: Sequence[Mapping[str, float]],
    scales: Sequence[float],
) -> OpTime:
    label, op, phase, why_no_work = kind
    work: dict[str, Any] = {}
    if why_no_work is None:
        work = {name: median_low(step[name] for step in steps) for name in _WORK}
    steps_exclusive_s = tuple(step["exclusive_s"] for step in steps)
    return OpTime.of(
        why_no_work or "",
        {"phase": _WHY_NO_PHASE},
        label=label,
        op=op,
        phase=phase,
        calls=int(median_low(step["calls"] for step in steps)),
        time_s=median(map(mul, (step["time_s"] for step in steps), scales)),
        exclusive_s=median(map(mul, steps_exclusive_s, scales)),
        steps_exclusive_s=steps_exclusive_s,
        **work,
    )


# Of a trace

_FRACTION = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e-\d+")
#: Dispatched on to an op of a backend, whose name says whether it is transposed.
_CONVOLUTIONS = frozenset({"convolution", "_convolution"})
#: Batch norms of backends; their backward ops are of training alone (derivatives.yaml).
_NORMS = frozenset({"cudnn_batch_norm", "miopen_batch_norm"})
_TRAINED = frozenset(f"{name}_backward" for name in _NORMS)
#: Their values: none of input, weight, bias and running statistics; training, momentum, epsilon.
_TRAINING = ("", "", "", "", "", "True", "0.5", "0.5")


#: Returns the work of ops by themselves (`bench.cost.printed_ops.work_of`), or why it is unknown.
WorkOf = Callable[[Sequence[CalledOp]], Mapping[CalledOp, OpWork | str]]


def op_rows(
    steps: Sequence[StepSpans],
    trace: ProfilerTrace,
    work_of: WorkOf,
    calls: Sequence[CallWork] = (),
) -> list[tuple[CalledOp, TracedOp]]:
    """Return the ops of some steps with what they took and bought, means per step; longest first.

    Times are of the trace's device, the mean over several that compute, or of the host without one.
    `work_of` has each op's work by itself; an op without one goes with the first op around it that
    has one. Of a known model `calls` are its step's (`op_work`); what it lacks, such as another
    optimizer, has the work of each op by itself. `fused_bytes` are an op's share of the step's
    where the model has it, else the least that the op can move.
    """
    on_device = bool(trace.device)
    # Steps overlap on the device: where two compute at once it counts for one.
    device = DeviceTime(run for step in steps for run in step.device)
    of_steps: list[list[SeenOp]] = []
    known: dict[CalledOp, None] = {}
    for step in steps:
        nest = Nest(step.host, timed=not on_device)
        device.give_to(nest, trace.launches, step.device)
        of_steps.append([*nest.tops, *nest.beside])
        shown = _Shown(nest.tops)
        for op in (timed for top in nest.tops for timed in _timed(top)):
            if op.kind is Kind.OP and op.span is not None:
                op.called = _called(op, op.span, shown)
                known[op.called] = None
    work = work_of(tuple(known))
    joined = [
        op
        for tops in of_steps
        for op in join(tops, CallsInOrder(calls, work))
        # Else it ran on the host, beside the device, or not at all.
        if op.runs or (op.own_s and not on_device)
    ]
    means_over = len(steps) * max(len(trace.computing), 1)
    alike = _by_key(joined, lambda op: _row(op, work))
    rows = [(key[0], _traced(key, ops, means_over)) for key, ops in alike.items()]
    return sorted(rows, key=lambda row: -row[1].time_s)


def _row(op: SeenOp, work: Mapping[CalledOp, OpWork | str]) -> tuple[CalledOp, str, str | None]:
    """The op, its label, and why its work is not known."""
    called = op.called or CalledOp(op.name, op.phase)
    if any(run.communicates for run in op.runs):
        return called, COMMUNICATION, Kind.COLLECTIVE.value
    if op.work is not None:
        return called, op.work.label, None
    if op.kind is not Kind.OP:
        return called, _label(op), op.kind.value
    # Of an op and what it called, the one that did most of it says why.
    longest = max(op.inner, key=lambda part: part.own_s)
    why = work.get(longest.called or called)
    return called, _label(op), why if isinstance(why, str) else Kind.OP.value


def _traced(
    key: tuple[CalledOp, str, str | None], ops: Sequence[SeenOp], means_over: int
) -> TracedOp:
    called, label, why_not = key
    kernels_s: defaultdict[str, float] = defaultdict(float)
    for run in (run for op in ops for run in op.runs):
        kernels_s[run.short_name] += run.duration_us / 1e6
    means = {name: total / means_over for name, total in _sums(ops).items()}
    del means["fp32_flops"]
    for name in (*WORK, "causal_skipped_flops") if why_not is not None else ():
        del means[name]
    return TracedOp.of(
        "not known",
        dict.fromkeys(WORK, why_not or ""),
        label=label,
        op=called.name,
        phase=called.phase,
        shapes=", ".join(_shapes(called.dims)),
        kernels=tuple(sorted(kernels_s, key=lambda name: -kernels_s[name])),
        **means,
    )


def _shapes(dims: object) -> list[str]:
    """The shapes of tensors among an op's arguments, lists of them included."""
    if not isinstance(dims, tuple) or not dims:
        return []
    if all(isinstance(length, int) for length in dims):
        return ["x".join(map(str, dims))]
    return [shape for dim in dims for shape in _shapes(dim)]


def _timed(op: SeenOp) -> Iterator[SeenOp]:
    """What took time in `op`, itself or in what it called; outer ones last."""
    inner = [timed for called in op.inner for timed in _timed(called)]
    yield from inner
    if inner or op.own_s or op.runs:
        yield op


class _Shown:
    """What the backward pass shows of its forward ops, by their sequence number.

    What a convolution returned has the shape of its gradient.
    """

    def __init__(self, tops: Iterable[SeenOp]) -> None:
        self.results: dict[int | None, tuple[int, ...]] = {}
        self.trained: set[int | None] = set()  # batch norms
        for op in (op for top in tops for op in top.everything()):
            span = op.span
            if span is None or span.sequence is None or op.kind is not Kind.WRAPPER:
                continue
            if "ConvolutionBackward" in op.name and span.dims and span.dims[0]:
                self.results[span.sequence] = tuple(span.dims[0])
            if any(inner.name in _TRAINED for inner in op.inner):
                self.trained.add(span.sequence)


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


@cache
def _whole(concrete: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fractions as one of them: no work depends on them, and an optimizer's change every step."""
    return tuple(
        _FRACTION.sub(lambda n: n[0] if float(n[0]).is_integer() else "0.5", value)
        if isinstance(value, str)
        else value
        for value in concrete
    )
