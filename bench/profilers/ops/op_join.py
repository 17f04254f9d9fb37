"""Seen ops joined with known work: each op once, each call of the cost model once."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

from bench.profilers.ops.op_nest import Kind, SeenOp
from bench.profilers.traces import DeviceSpan
from bench.records.complexity import CallWork, OpWork, is_attention

_Shapes = Sequence[tuple[int, ...]]

#: The same mathematics under a backend's own name, and how many of the leading shapes they share.
_SAME: dict[str, tuple[str, int]] = {
    **dict.fromkeys(
        (
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_with_update",
            "cudnn_batch_norm",
            "miopen_batch_norm",
        ),
        ("batch_norm", 1),
    ),
    **dict.fromkeys(
        (
            "native_batch_norm_backward",
            "batch_norm_backward",
            "cudnn_batch_norm_backward",
            "miopen_batch_norm_backward",
        ),
        ("batch_norm_backward", 1),
    ),
    **dict.fromkeys(("index_put", "_index_put_impl_"), ("index_put", 1)),
}


#: Gradients of a convolution, and where gradient, input and weight stand among their shapes.
_CONVOLUTION_BACKWARD = {
    "convolution_backward": (0, 1, 2),
    **dict.fromkeys(
        (
            "cudnn_convolution_backward",
            "miopen_convolution_backward",
            "mkldnn_convolution_backward",
        ),
        (1, 0, 2),
    ),
}


class Work(Protocol):
    """Answers which op is a unit of work, and what that work is."""

    def has(self, op: SeenOp) -> bool:
        """Return whether the work of `op`, with all it calls, is known."""

    def take(self, op: SeenOp) -> OpWork:
        """Return that work; each call answers for another op."""


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


def join(tops: Iterable[SeenOp], work: Work) -> list[Share]:
    """Return what every op of a step took, no op twice, beside the work it did."""
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
        return op.kind is Kind.OP and not casts and bool(self._line(op))

    def take(self, op: SeenOp) -> CallWork:
        """Return the next call like `op`."""
        return self._line(op).popleft()

    def _line(self, op: SeenOp) -> deque[CallWork]:
        return self._calls[op.phase, _identity(op.name, op.shapes)]


def _identity(name: str, shapes: _Shapes) -> Hashable:
    """Return what a timed op and a modelled call have in common if they are the same."""
    if (sizes := _product_sizes(name, shapes)) is not None:
        return "product", *sizes
    if is_attention(name):  # queries, keys and values, after the result's gradient
        is_backward = name.endswith("_backward")
        return "attention", is_backward, tuple(shapes[: 3 + is_backward])
    if name in _SAME:
        same, leading = _SAME[name]
        return same, tuple(shapes[:leading])
    if name in _CONVOLUTION_BACKWARD:
        return "convolution_backward", tuple(shapes[i] for i in _CONVOLUTION_BACKWARD[name]
                                             if i < len(shapes))  # fmt: skip
    # The sum of two gradients is made in place of one of them where nothing else holds it.
    return name.rstrip("_"), tuple(shapes)


def _product_sizes(name: str, shapes: _Shapes) -> tuple[int, int, int] | None:
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


def _shares(op: SeenOp, work: Work) -> Iterator[Share]:
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
