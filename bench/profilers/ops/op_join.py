"""Seen ops joined with known work: each op once, each call of the cost model once.

`op_times` adds up what was joined in several steps.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import mul
from statistics import median, median_low
from typing import Any

from bench.profilers.ops.op_nest import Kind, SeenOp
from bench.profilers.traces import DeviceSpan
from bench.records import OpTime, Phase
from bench.records.complexity import WORK, CallWork, OpWork, is_attention, plain_label
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
_WHY_NO_WORK = {
    Kind.OP: "not a call of the cost model: a view, an allocation, or the backend's own way",
    Kind.REGION: "compiled: ops fused into the graph have no times of their own",
    Kind.KERNEL: "launched by no op: part of a compiled graph or of a CUDA graph",
    Kind.COLLECTIVE: "communication: also waits for other ranks",
}
#: What ops are called that are none of torch's.
LABELS = {Kind.REGION: "compiled graph", Kind.LOADER: LOADER, Kind.COLLECTIVE: COMMUNICATION}
_WHY_NO_PHASE = "autograd's engine did not run in the step: a CUDA graph replays it whole"
#: What the shares of one record have in common: label, op, phase, why its work is not known.
_Name = tuple[str, str, Phase | None, str | None]


@dataclass(frozen=True)
class Share:
    """The time of one op, and what it was spent on: its work, None where that is not known.

    `parts` are the op and what it called, each in one share of a step alone.
    """

    seen: SeenOp
    call: OpWork | None
    parts: tuple[SeenOp, ...]

    @property
    def time_s(self) -> float:
        """Own times of its parts."""
        return sum(part.own_s for part in self.parts)

    @property
    def exclusive_s(self) -> float:
        """The same, with no nanosecond in two shares of a device."""
        return sum(part.exclusive_s for part in self.parts)

    @property
    def runs(self) -> list[DeviceSpan]:
        """Kernels, copies and fills that its parts launched."""
        return [run for part in self.parts for run in part.runs]


def join(tops: Iterable[SeenOp], work: CallsInOrder) -> list[Share]:
    """Return what every op of a step took, no op twice, beside the work it did.

    `work` says which op is a unit of work; each of its calls answers for another op.
    """
    return [share for top in tops for share in _shares(top, work)]


class CallsInOrder:
    """The cost model's calls of a whole step; those that no timed op has taken yet are in line."""

    def __init__(self, work: Iterable[CallWork]) -> None:
        self._calls: defaultdict[Hashable, deque[CallWork]] = defaultdict(deque)
        for call in work:
            self._calls[call.phase, _identity(call.op, call.shapes)].append(call)

    def has(self, op: SeenOp) -> bool:
        """Return whether a call like `op` is in line."""
        # Autocast casts what an op is given, then calls the op itself.
        casts = any(inner.name == op.name for inner in op.inner)
        return op.kind is Kind.OP and not casts and bool(self._calls and self._line(op))

    def take(self, op: SeenOp) -> OpWork:
        """Return the next call like `op`."""
        return self._line(op).popleft()

    def _line(self, op: SeenOp) -> deque[CallWork]:
        return self._calls[op.phase, _identity(op.name, op.shapes)]


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


def _shares(op: SeenOp, work: CallsInOrder) -> Iterator[Share]:
    if work.has(op):
        call = work.take(op)
        # Autograd copies the input of an op in place that the backward pass needs: another call.
        inside = op.inner if op.name.endswith("_") else ()
        copies = [one for one in inside if one.name == "clone" and work.has(one)]
        others = (one for one in op.inner if not any(one is copy for copy in copies))
        yield Share(op, call, (op, *(part for one in others for part in one.everything())))
        for copy in copies:
            yield from _shares(copy, work)
        return
    inner = [share for i in op.inner for share in _shares(i, work)]
    matched = [share for share in inner if share.call is not None]
    if op.kind is Kind.WRAPPER:
        yield from inner
    elif op.kind is Kind.OP and not matched:
        yield Share(op, None, tuple(op.everything()))
    elif op.kind is Kind.OP and len(matched) == 1:
        # The way to the one op that does the work: `conv2d` to `convolution`.
        whole = replace(matched[0], parts=(*matched[0].parts, op))
        yield from (whole if share is matched[0] else share for share in inner)
    else:
        yield Share(op, None, (op,))
        yield from inner


def op_times(
    steps: Sequence[Iterable[Share]], scales: Sequence[float] | None = None
) -> tuple[OpTime, ...]:
    """Return one record per kind, op and phase, longest first: medians of the steps' sums.

    Each step's times are first multiplied by its part of `scales`. A kind that a step lacks counts
    as zero in it. Where only some calls of an op are among the cost model's, they are a record of
    their own. Ops without work and time are left out.
    """
    summed = [_summed(shares) for shares in steps]
    names = dict.fromkeys(name for sums in summed for name in sums)
    nothing: dict[str, float] = defaultdict(int)
    scales = scales or [1.0] * len(summed)
    times = [_op_time(name, [sums.get(name, nothing) for sums in summed], scales) for name in names]
    kept = [time for time in times if time.calls and (time.flops is not None or time.time_s)]
    return tuple(sorted(kept, key=lambda time: -time.time_s))


def _summed(shares: Iterable[Share]) -> dict[_Name, dict[str, float]]:
    sums: defaultdict[_Name, dict[str, float]] = defaultdict(lambda: defaultdict(int))
    for share in shares:
        total = sums[_name(share)]
        total["calls"] += 1
        total["time_s"] += share.time_s
        total["exclusive_s"] += share.exclusive_s
        for field in _WORK:
            total[field] += getattr(share.call, field, 0)
    return sums


def _name(share: Share) -> _Name:
    copies_only = share.runs and all(run.copies_to_or_from_host for run in share.runs)
    if isinstance(call := share.call, CallWork):
        return HOST_COPY if copies_only else call.label, call.op, call.phase, None
    seen = share.seen
    if seen.runs and all(run.communicates for run in seen.runs):
        return COMMUNICATION, seen.name, seen.phase, _WHY_NO_WORK[Kind.COLLECTIVE]
    if copies_only:
        return HOST_COPY, seen.name, seen.phase, _WHY_NO_WORK[seen.kind]
    label = plain_label(seen.name) if seen.kind is Kind.OP else LABELS.get(seen.kind, seen.name)
    return label, seen.name, seen.phase, _WHY_NO_WORK[seen.kind]


def _op_time(name: _Name, steps: list[dict[str, float]], scales: Sequence[float]) -> OpTime:
    label, op, phase, why_no_work = name
    work: dict[str, Any] = {}
    if why_no_work is None:
        work = {field: median_low(step[field] for step in steps) for field in _WORK}
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
