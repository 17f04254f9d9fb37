"""The ops of a trace's steps, one row per op and shape: their time, and the work that it bought.

An op's time is what the kernels that it launched took, each its own duration; its exclusive time
counts each nanosecond of a device for one op only. On a trace without a device it is the op's own
time on the host. Rates are work over time, never over exclusive time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from analysis.traces.timeline import StepSpans
from bench.profilers.ops.op_join import LABELS, CallsInOrder, Share, join
from bench.profilers.ops.op_nest import DeviceTime, Kind, Nest, SeenOp
from bench.profilers.traces import HostSpan, ProfilerTrace
from bench.records import TracedOp
from bench.records.complexity import WORK, CalledOp, CallWork, OpWork, plain_label
from bench.records.profile import COMMUNICATION

_NOT_IN_MODEL = "no call of the model: a view, an allocation, or the backend's own way"
_WHY_NOT = {
    Kind.REGION: "compiled: ops fused into the graph have no times of their own",
    Kind.KERNEL: "launched by no op: part of a compiled graph or of a CUDA graph, or its launch is "
    "not in the trace",
    Kind.LOADER: "the step waits for its data",
    Kind.COLLECTIVE: "exchanges data with other ranks",
}
_FRACTION = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e-\d+")
#: Dispatched on to an op of a backend, whose name says whether it is transposed.
_CONVOLUTIONS = frozenset({"convolution", "_convolution"})
#: Batch norms of backends; their backward ops are of training alone (derivatives.yaml).
_NORMS = frozenset({"cudnn_batch_norm", "miopen_batch_norm"})
_TRAINED = frozenset(f"{name}_backward" for name in _NORMS)
#: Their values: none of input, weight, bias and running statistics; training, momentum, epsilon.
_TRAINING = ("", "", "", "", "", "True", "0.5", "0.5")
#: What the shares of one row have in common: op, label, why its work is not known.
_Key = tuple[CalledOp, str, str | None]


class OpTable:
    """The ops of some steps of one trace; times are of its device, or of the host without one."""

    def __init__(self, steps: Sequence[StepSpans], trace: ProfilerTrace) -> None:
        self._on_device = bool(trace.device)
        self._means_over = len(steps) * max(len(trace.computing), 1)
        # Steps overlap on the device: where two compute at once it counts for one.
        device = DeviceTime(run for step in steps for run in step.device)
        self._tops: list[list[SeenOp]] = []  # of each step
        self._called: dict[int, CalledOp] = {}  # by the identity of the op that was seen
        for step in steps:
            nest = Nest(step.host, timed=not self._on_device)
            device.give_to(nest, trace.launches, step.device)
            self._tops.append([*nest.tops, *nest.beside])
            shown = _Shown(nest.tops)
            for op in (timed for top in nest.tops for timed in _timed(top)):
                if op.kind is Kind.OP and op.span is not None:
                    self._called[id(op)] = _called(op, op.span, shown)

    @property
    def ops(self) -> tuple[CalledOp, ...]:
        """Every op that took time, once: what `bench.cost.printed_ops.work_of` is asked for."""
        return tuple(dict.fromkeys(self._called.values()))

    def rows(
        self, work: Mapping[CalledOp, OpWork | str], calls: Sequence[CallWork] = ()
    ) -> list[tuple[CalledOp, TracedOp]]:
        """Return the ops with what they took and bought, means per step; the longest first.

        Of several devices that compute it is the mean over them, too.
        `work` has each op's work by itself; an op without one goes with the first op around it that
        has one. Of a known model `calls` are its step's (`op_work`); what it lacks, such as another
        optimizer, has the work of each op by itself. `fused_bytes` are an op's share of the step's
        where the model has it, else the least that the op can move.
        """
        known = ((one, work.get(called)) for one, called in self._called.items())
        alone = {one: its_work for one, its_work in known if isinstance(its_work, OpWork)}
        shares: defaultdict[_Key, list[Share]] = defaultdict(list)
        for tops in self._tops:
            for share in join(tops, _Work(alone, calls)):
                # Else it ran on the host, beside the device, or not at all.
                if share.runs or (share.time_s and not self._on_device):
                    shares[self._key(share, work)].append(share)
        rows = [(key[0], _traced(key, alike, self._means_over)) for key, alike in shares.items()]
        return sorted(rows, key=lambda row: -row[1].time_s)

    def _key(self, share: Share, work: Mapping[CalledOp, OpWork | str]) -> _Key:
        seen = share.seen
        op = self._called.get(id(seen)) or CalledOp(seen.name, seen.phase)
        if any(run.communicates for run in share.runs):
            return op, COMMUNICATION, _WHY_NOT[Kind.COLLECTIVE]
        if share.call is not None:
            return op, share.call.label, None
        if seen.kind is not Kind.OP:
            return op, LABELS.get(seen.kind, seen.name), _WHY_NOT[seen.kind]
        # Of an op and what it called, the one that did most of it says why.
        longest = max(share.parts, key=lambda part: part.own_s)
        why = work.get(self._called.get(id(longest), op))
        return op, plain_label(seen.name), why if isinstance(why, str) else _NOT_IN_MODEL


class _Work(CallsInOrder):
    """The work of a model's calls; of an op with none of them inside, its own."""

    def __init__(self, alone: Mapping[int, OpWork], calls: Sequence[CallWork]) -> None:
        super().__init__(calls)
        self._alone = alone

    def has(self, op: SeenOp) -> bool:
        """Return whether the work of `op` is known."""
        if super().has(op):
            return True
        # Autocast casts what an op is given, then calls the op itself.
        if id(op) not in self._alone or any(inner.name == op.name for inner in op.inner):
            return False
        return not any(map(super().has, op.everything()))

    def take(self, op: SeenOp) -> OpWork:
        """Return that work."""
        return super().take(op) if super().has(op) else self._alone[id(op)]


def _traced(key: _Key, shares: Sequence[Share], means_over: int) -> TracedOp:
    op, label, why_not = key
    kernels_s: defaultdict[str, float] = defaultdict(float)
    for run in (run for share in shares for run in share.runs):
        kernels_s[run.short_name] += run.duration_us / 1e6
    names = (*WORK, "causal_skipped_flops") if why_not is None else ()
    return TracedOp.of(
        "not known",
        dict.fromkeys(WORK, why_not or ""),
        label=label,
        op=op.name,
        phase=op.phase,
        shapes=", ".join(_shapes(op.dims)),
        calls=len(shares) / means_over,
        time_s=sum(share.time_s for share in shares) / means_over,
        exclusive_s=sum(share.exclusive_s for share in shares) / means_over,
        kernels=tuple(sorted(kernels_s, key=lambda name: -kernels_s[name])),
        **{name: sum(getattr(share.call, name) for share in shares) / means_over for name in names},
    )


def _shapes(dims: object) -> list[str]:
    """The shapes of tensors among an op's arguments, lists of them included."""
    if not isinstance(dims, tuple) or not dims:
        return []
    if all(isinstance(length, int) for length in dims):
        return ["x".join(map(str, dims))]
    return [shape for one in dims for shape in _shapes(one)]


def _timed(op: SeenOp) -> Iterator[SeenOp]:
    """What took time in `op`, itself or in what it called; outer ones last."""
    inner = [timed for one in op.inner for timed in _timed(one)]
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
