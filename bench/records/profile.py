"""What one configuration's step did inside: its ops, its counters, and the profile of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from bench.config import ResolvedConfig, RunConfig
from bench.records.base import (
    NEWER,
    Count,
    Facts,
    Instant,
    KeptRecord,
    Phase,
    PositiveSeconds,
    Record,
    Seconds,
    Share,
)
from bench.records.complexity import Complexity
from bench.records.counters import CpuCounters, GpuCounters
from bench.records.environment import Environment, Telemetry


class WorkSet(Record):
    """Names and counts of what one training step launched.

    `kernels` on CUDA, named as `bench.records.kernel_names` spells them; `ops` (aten) elsewhere.
    """

    unit: Literal["kernels", "ops"]
    counts: dict[str, Count]

    def differences(self, other: WorkSet) -> tuple[str, ...]:
        """Return what the two do not share, as `name: 3 against 4`; empty for the same work."""
        names = sorted(self.counts.keys() | other.counts.keys())
        pairs = ((name, self.counts.get(name, 0), other.counts.get(name, 0)) for name in names)
        return tuple(
            f"{name}: {ours} against {theirs}" for name, ours, theirs in pairs if ours != theirs
        )


#: The label of ops whose kernels exchange data with other ranks.
COMMUNICATION = "communication"
#: Of a data loader's mark, in which no op ran.
LOADER = "waiting for the loader"
#: Of one that copies between the host and the device, under whatever name: `to`, a cast.
HOST_COPY = "copy between host and device"
#: Of what an fp8 layer does beside its products: largest elements, scales, casts, transposes.
CASTS = "casts and scales"


#: A step that takes over so many times the shortest was disturbed.
_CALM = 1.25


def calm(seconds: Sequence[float]) -> list[float]:
    """Return those of `seconds` that nothing disturbed, as the shortest shows."""
    return [time_s for time_s in seconds if time_s <= _CALM * min(seconds)]


def profiler_cost(steps_s: Sequence[float], neighbours_s: Sequence[float]) -> float:
    """Return how many times as long the profiler makes a step: what each pair shows at least.

    What only some show is the machine's pace. It makes no step shorter.
    """
    pairs = zip(steps_s, neighbours_s, strict=True)
    return max(min(step_s / neighbour_s for step_s, neighbour_s in pairs), 1.0)


class OpTime(Facts):
    """All calls of one kind of op in one phase of one step.

    `label` distinguishes kinds that differ under the roof: `convolution 1x1`, `batch_norm`. Work is
    the cost model's (`bench.cost`), None where the op has no counterpart there. An op that
    communicates is `communication`: its time is also that of waiting for other ranks. `time_s` is
    what its kernels took, each its own duration; a rate is work over it. Of `exclusive_s` no
    nanosecond is in two ops, so it adds up to the device's busy time.
    """

    label: str
    op: str  # aten's name
    phase: Phase | None  # None where a CUDA graph replays the step whole
    calls: Count
    time_s: Seconds
    exclusive_s: Seconds
    flops: Count | None
    elementwise_flops: Count | None
    eager_bytes: Count | None
    fused_bytes: Count | None
    causal_skipped_flops: Count = 0  # of `flops`, what a fused attention may leave out
    fp32_flops: Count = 0  # of `flops`, those of 32-bit numbers
    steps_exclusive_s: tuple[Seconds, ...] | None = Field(NEWER)  # of each profiled step, raw


class Copies(Record):
    """Copies between host and device in one step, one direction together."""

    direction: Literal["host to device", "device to host", "device to device"]
    calls: Count
    bytes: Count
    time_s: Seconds


class OpProfile(Facts):
    """Times of one training step, by PyTorch's profiler or by synchronised dispatch.

    Before and after each profiled step runs one without the profiler: its neighbours. Times are
    medians over `iterations` profiled steps; on a host each step is first scaled to the median of
    the neighbours times `profiler_cost`, so that a change of pace changes no time.
    What ops leave of a step belongs to none of them: Python, autograd, the profiler itself.
    """

    method: str
    iterations: Count
    step_time_s: PositiveSeconds  # wall time of a profiled step, the profiler's own cost included
    ops: tuple[OpTime, ...]  # longest first
    device_busy_share: Share | None  # of the step in which the device ran a kernel or a copy
    launch_gap_s: Seconds | None  # the device's idle time between first and last kernel
    copies: tuple[Copies, ...] | None
    data_wait_s: Seconds | None = Field(NEWER)  # host time inside next(loader) of torch's loader
    steps_s: tuple[PositiveSeconds, ...] | None = Field(NEWER)  # wall, of each profiled step
    neighbours_s: tuple[PositiveSeconds, ...] | None = Field(NEWER)  # mean of step before and after

    @property
    def profiler_costs(self) -> tuple[float, ...]:
        """How many times as long as its neighbours each profiled step takes."""
        pairs = zip(self.steps_s or (), self.neighbours_s or (), strict=True)
        return tuple(step_s / neighbour_s for step_s, neighbour_s in pairs)

    @property
    def ops_time_s(self) -> float:
        """Time of all ops together; more than the step's where the device ran several at once."""
        return sum(op.time_s for op in self.ops)

    @property
    def exposed_communication_s(self) -> float | None:
        """The time in which the device only communicated, or waited for other ranks.

        None where ops ran on the host, which does not show it.
        """
        if self.device_busy_share is None:
            return None
        return sum(op.exclusive_s for op in self.ops if op.label == COMMUNICATION)

    @property
    def computing_s(self) -> float | None:
        """The device's busy time but for exposed communication; None where it is not known."""
        if self.device_busy_share is None:
            return None
        return self.device_busy_share * self.step_time_s - (self.exposed_communication_s or 0.0)

    @property
    def exclusive_s(self) -> float:
        """The part of the step in which any op ran."""
        return sum(op.exclusive_s for op in self.ops)


#: The tools that look inside a step; each has a section of a profile.
ToolName = Literal["torch", "ncu", "perf"]


class ProfileRecord(KeptRecord):
    """One configuration, profiled: the file `record.json` of a record folder.

    Each tool's section is None with the tool's own reason and remedy. Times in it are a profiled
    step's; how fast the configuration is, the timed run says.
    """

    kind: Literal["profile"] = "profile"
    config: RunConfig
    config_id: str
    timed_record_id: str | None  # the measurement of the same step on this device
    resolved: ResolvedConfig | None
    environment: Environment | None
    complexity: Complexity | None
    work: WorkSet | None
    ops: OpProfile | None
    counters: GpuCounters | None
    cpu_counters: CpuCounters | None
    tool_telemetry: dict[ToolName, Telemetry] | None  # while each tool's worker had its device
    ended: Instant | None = Field(NEWER)  # UTC
