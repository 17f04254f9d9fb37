"""A step's time op by op, as one record: seen ops joined with the cost model's calls."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median, median_low
from typing import Any

from bench.cost import CallWork
from bench.cost.op_calls import is_attention, plain_label
from bench.profilers.ops.synchronized import Synchronized
from bench.profilers.ops.timed_step import Kind, Recorder, SeenOp, TimedStep
from bench.profilers.ops.torch_profiler import Profiled, ProfiledOnDevice
from bench.records import Backend, OpProfile, OpTime, Phase
from bench.training.devices import Device

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


def _shares(op: SeenOp, waiting: _Waiting) -> Iterator[Share]:
    if waiting.has(op):
        call = waiting.take(op)
        # Autograd copies the input of an op in place that the backward pass needs: another call.
        inside = op.inner if op.name.endswith("_") else ()
        copies = [one for one in inside if one.name == "clone" and waiting.has(one)]
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


# Sums of several steps, one record per kind of op

_WORK = ("flops", "elementwise_flops", "eager_bytes", "fused_bytes")
_WHY_NO_WORK = {
    Kind.OP: "not a call of the cost model: a view, an allocation, or the backend's own way",
    Kind.REGION: "compiled: ops fused into the graph have no times of their own",
    Kind.KERNEL: "launched by no op: part of a compiled graph or of a CUDA graph",
}
_WHY_NO_PHASE = "autograd's engine did not run in the step: a CUDA graph replays it whole"


#: What the shares of one record have in common: label, op, phase, why its work is not known.
_Name = tuple[str, str, Phase | None, str | None]


def op_times(steps: Sequence[Iterable[Share]]) -> tuple[OpTime, ...]:
    """Return one record per kind, op and phase, longest first: medians of the steps' sums.

    A kind that a step lacks counts as zero in it. Where only some calls of an op are among the cost
    model's, they are a record of their own. Ops without work and time are left out.
    """
    summed = [_summed(shares) for shares in steps]
    names = dict.fromkeys(name for sums in summed for name in sums)
    nothing: dict[str, float] = defaultdict(int)
    times = [_op_time(name, [sums.get(name, nothing) for sums in summed]) for name in names]
    kept = [time for time in times if time.calls and (time.flops is not None or time.time_s)]
    return tuple(sorted(kept, key=lambda time: -time.time_s))


def _summed(shares: Iterable[Share]) -> dict[_Name, dict[str, float]]:
    sums: defaultdict[_Name, dict[str, float]] = defaultdict(lambda: defaultdict(int))
    for share in shares:
        total = sums[_name(share)]
        total["calls"] += 1
        total["time_s"] += share.time_s
        for field in _WORK:
            total[field] += getattr(share.call, field, 0)
    return sums


def _name(share: Share) -> _Name:
    if (call := share.call) is not None:
        return call.label, call.op, call.phase, None
    seen = share.seen
    label = {Kind.OP: plain_label(seen.name), Kind.REGION: "compiled graph"}
    return label.get(seen.kind, seen.name), seen.name, seen.phase, _WHY_NO_WORK[seen.kind]


def _op_time(name: _Name, steps: list[dict[str, float]]) -> OpTime:
    label, op, phase, why_no_work = name
    work: dict[str, Any] = {}
    if why_no_work is None:
        work = {field: median_low(step[field] for step in steps) for field in _WORK}
    return OpTime.of(
        why_no_work or "",
        {"phase": _WHY_NO_PHASE},
        label=label,
        op=op,
        phase=phase,
        calls=int(median_low(step["calls"] for step in steps)),
        time_s=median(step["time_s"] for step in steps),
        **work,
    )


def profile_ops(
    step: Callable[[], object],
    device: Device,
    work: Sequence[CallWork],
    iterations: int = 5,
) -> OpProfile:
    """Run `step` once for the tool to start up, then `iterations` times to time its ops.

    Before each timed step goes one that is not: reading the last trace has taken the memory that
    the allocator keeps from step to step, and a step that pays for new pages is up to a third
    slower.

    `work` are the cost model's calls of the same step (`bench.cost.op_work`). Times are of
    the device on CUDA, of the host on a CPU, and of synchronised ops on MPS; `method` says which.
    """
    recorders: dict[Backend, Callable[[Callable[[], object], Device], Recorder]] = {
        "cpu": Profiled,
        "cuda": ProfiledOnDevice,
        "mps": Synchronized,
    }
    recorder = recorders[device.backend](step, device)
    recorder.record()
    steps = []
    for _ in range(iterations):
        step()
        steps.append(recorder.record())
    return _profile(recorder.method, steps, work)


def _profile(method: str, timed: Sequence[TimedStep], work: Sequence[CallWork]) -> OpProfile:
    """Sum up the steps, but for those of which the profiler lost kernels (pytorch#192021)."""
    most = max(step.kernels for step in timed)
    steps = [step for step in timed if step.kernels == most]
    if lost := len(timed) - len(steps):
        method += f"; {lost} of {len(timed)} steps left out, of which it lost kernels"
    shares = [join(step.ops, work) for step in steps]
    facts: dict[str, Any] = {
        "device_busy_share": _median(step.busy_s and step.busy_s / step.wall_s for step in steps),
        "launch_gap_s": _median(step.launch_gap_s for step in steps),
        "copies": steps[-1].copies,
    }
    missing = {name: steps[-1].missing[name] for name, fact in facts.items() if fact is None}
    if unseen := _unseen(shares[-1], work):
        missing["unseen"] = unseen
    return OpProfile(
        method=method,
        iterations=len(steps),
        step_time_s=median(step.wall_s for step in steps),
        ops=op_times(shares),
        missing=missing,
        **facts,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _unseen(shares: Iterable[Share], work: Sequence[CallWork]) -> str | None:
    """Say which calls of the cost model no timed op was joined with."""
    seen = Counter((share.call.op, share.call.phase) for share in shares if share.call)
    rest = Counter((call.op, call.phase) for call in work) - seen
    if not rest:
        return None
    named = ", ".join(f"{count} {op} ({phase})" for (op, phase), count in rest.most_common(5))
    return f"{rest.total()} of the cost model's {len(work)} calls were not seen, such as {named}"
