"""A step's time op by op, as one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from bench.cost import CallWork
from bench.profilers.ops.op_times import Share, join, op_times
from bench.profilers.ops.synchronized import Synchronized
from bench.profilers.ops.timed_step import Recorder, TimedStep
from bench.profilers.ops.torch_profiler import Profiled, ProfiledOnDevice
from bench.records import Backend, OpProfile
from bench.training.devices import Device


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
    recorder = _recorder(step, device)
    recorder.record()
    steps = []
    for _ in range(iterations):
        step()
        steps.append(recorder.record())
    return _profile(recorder.method, steps, work)


def _recorder(step: Callable[[], object], device: Device) -> Recorder:

    recorders: dict[Backend, Callable[[Callable[[], object], Device], Recorder]] = {
        "cpu": Profiled,
        "cuda": ProfiledOnDevice,
        "mps": Synchronized,
    }
    return recorders[device.backend](step, device)


def _profile(method: str, steps: Sequence[TimedStep], work: Sequence[CallWork]) -> OpProfile:
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
