"""Ops that were timed, joined with the calls of the cost model.

Both come in the order of dispatch, so a timed op is the next call in line with its phase, name and
shapes. The outermost op of a nest that is such a call takes the time of everything in it: what it
calls is how a backend does the work, not other work.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from bench.cost import CallWork
from bench.cost.contractions import is_attention
from bench.profilers.ops.seen import Kind, SeenOp

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


@dataclass(frozen=True)
class Share:
    """The time of one op; `call` is its work, None where the cost model has no such call."""

    seen: SeenOp
    call: CallWork | None
    time_s: float


def join(tops: Iterable[SeenOp], work: Iterable[CallWork]) -> list[Share]:
    """Return what every op of a step took, no nanosecond twice, beside the work it did."""
    waiting = _Waiting(work)
    return [share for top in tops for share in _shares(top, waiting)]


class _Waiting:
    """The calls that no timed op has taken yet."""

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
    # The sum of two gradients is made in place of one of them where nobody else holds it.
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


def _shares(op: SeenOp, waiting: _Waiting) -> Iterator[Share]:
    if waiting.has(op):
        call = waiting.take(op)
        # Autograd copies the input of an op in place that the backward pass needs: another call.
        copies = [i for i in op.inner if op.name.endswith("_") and _is_copy(i) and waiting.has(i)]
        yield Share(op, call, op.total_s - sum(copy.total_s for copy in copies))
        for copy in copies:
            yield from _shares(copy, waiting)
        return
    inner = [share for i in op.inner for share in _shares(i, waiting)]
    matched = [share for share in inner if share.call is not None]
    if op.kind is Kind.WRAPPER:
        yield from inner
    elif op.kind is Kind.OP and not matched:
        yield Share(op, None, op.total_s)
    elif op.kind is Kind.OP and len(matched) == 1:
        # The way to the one op that does the work: `conv2d` to `convolution`.
        whole = replace(matched[0], time_s=matched[0].time_s + op.own_s)
        yield from (whole if share is matched[0] else share for share in inner)
    else:
        yield Share(op, None, op.own_s)
        yield from inner


def _is_copy(op: SeenOp) -> bool:
    return op.name == "clone"
