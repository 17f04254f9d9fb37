"""A step's time op by op, as one record: seen ops joined with the cost model's calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median, median_low
from typing import Any

from bench.profilers.ops.op_join import CallsInOrder, Share, join
from bench.profilers.ops.op_nest import Kind, Recorder, TimedStep
from bench.profilers.ops.torch_profiler import Profiled, ProfiledOnDevice, Synchronized, pack_trace
from bench.records import Backend, OpProfile, OpTime, Phase
from bench.records.complexity import CallWork, plain_label
from bench.records.profile import COMMUNICATION
from bench.training.devices import Device

# Sums of several steps, one record per kind of op

_WORK = ("flops", "elementwise_flops", "eager_bytes", "fused_bytes", "causal_skipped_flops")
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
        total["exclusive_s"] += share.exclusive_s
        for field in _WORK:
            total[field] += getattr(share.call, field, 0)
    return sums


def _name(share: Share) -> _Name:
    if isinstance(call := share.call, CallWork):
        return call.label, call.op, call.phase, None
    seen = share.seen
    if seen.runs and all(run.communicates for run in seen.runs):
        return COMMUNICATION, seen.name, seen.phase, "communication: also waits for other ranks"
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
        exclusive_s=median(step["exclusive_s"] for step in steps),
        **work,
    )


def profile_ops(
    step: Callable[[], object],
    device: Device,
    work: Sequence[CallWork],
    iterations: int = 5,
    trace_file: Path | None = None,
) -> OpProfile:
    """Run `step` once for the tool to start up, then `iterations` times to time its ops.

    Before each timed step goes one that is not: reading the last trace has taken the memory that
    the allocator keeps from step to step, and a step that pays for new pages is up to a third
    slower.

    `work` are the cost model's calls of the same step (`bench.cost.estimate.op_work`). Times are of
    the device on CUDA, of the host on a CPU, and of synchronised ops on MPS; `method` says which.
    The trace of the last step is kept, compressed, as `trace_file` with `.gz` after it.
    """
    recorders: dict[Backend, Callable[[], Recorder]] = {
        "cpu": lambda: Profiled(step, device, trace_file),
        "cuda": lambda: ProfiledOnDevice(step, device, trace_file),
        "mps": lambda: Synchronized(step, device),
    }
    recorder = recorders[device.backend]()
    recorder.record()
    steps = []
    for _ in range(iterations):
        step()
        steps.append(recorder.record())
    found = _profile(recorder.method, steps, work)
    if trace_file is not None and trace_file.exists() and (why := pack_trace(trace_file)):
        return found.replaced({"trace": why})
    return found


def _profile(method: str, timed: Sequence[TimedStep], work: Sequence[CallWork]) -> OpProfile:
    """Sum up the steps, but for those of which the profiler lost kernels (pytorch#192021)."""
    most = max(step.kernels for step in timed)
    steps = [step for step in timed if step.kernels == most]
    if lost := len(timed) - len(steps):
        method += f"; {lost} of {len(timed)} steps left out, of which it lost kernels"
    shares = [join(step.ops, CallsInOrder(work)) for step in steps]
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
    calls = (share.call for share in shares)
    seen = Counter((call.op, call.phase) for call in calls if isinstance(call, CallWork))
    rest = Counter((call.op, call.phase) for call in work) - seen
    if not rest:
        return None
    named = ", ".join(f"{count} {op} ({phase})" for (op, phase), count in rest.most_common(5))
    return f"{rest.total()} of the cost model's {len(work)} calls were not seen, such as {named}"
