"""From the ops of several steps to one record of each kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any

from bench.cost.labels import plain_label
from bench.profilers.ops.join import Share
from bench.profilers.ops.seen import Kind
from bench.records import OpTime, Phase

_WORK = ("flops", "elementwise_flops", "eager_bytes", "fused_bytes")
_WHY_NO_WORK = {
    Kind.OP: "not a call of the cost model: a view, an allocation, or the backend's own way",
    Kind.REGION: "compiled: what was fused into the graph cannot be told apart",
    Kind.KERNEL: "launched by no op: part of a compiled graph or of a CUDA graph",
}
_WHY_NO_PHASE = "autograd's engine did not run in the step: a CUDA graph replays it whole"


@dataclass(frozen=True)
class _Name:
    """What the shares of one record have in common."""

    label: str
    op: str
    phase: Phase | None
    why_no_work: str | None


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
        return _Name(call.label, call.op, call.phase, None)
    seen = share.seen
    label = {Kind.OP: plain_label(seen.name), Kind.REGION: "compiled graph"}
    return _Name(label.get(seen.kind, seen.name), seen.name, seen.phase, _WHY_NO_WORK[seen.kind])


def _op_time(name: _Name, steps: list[dict[str, float]]) -> OpTime:
    missing: dict[str, str] = {}
    work: dict[str, Any] = {field: median_low(step[field] for step in steps) for field in _WORK}
    if name.why_no_work is not None:
        work = dict.fromkeys(_WORK)
        missing |= dict.fromkeys(_WORK, name.why_no_work)
    if name.phase is None:
        missing["phase"] = _WHY_NO_PHASE
    return OpTime(
        label=name.label,
        op=name.op,
        phase=name.phase,
        calls=int(median_low(step["calls"] for step in steps)),
        time_s=median(step["time_s"] for step in steps),
        missing=missing,
        **work,
    )
