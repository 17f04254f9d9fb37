"""Where the time of one training step went, op by op, beside what each op had to do."""

from __future__ import annotations

from typing import Literal

from bench.records.base import Count, Facts, Phase, Record, Seconds, Share


class OpTime(Facts):
    """All calls of one kind of op in one phase of one step.

    `label` tells kinds apart that differ under the roof: `convolution 1x1`,
    `depthwise convolution 3x3`, `batch_norm`. Work is the cost model's (`bench.cost`), None
    where the profiled op has no counterpart there. Times are exclusive: no nanosecond is in two.
    """

    label: str
    op: str  # aten's name
    phase: Phase | None  # None where a CUDA graph replays the step whole
    calls: Count
    time_s: Seconds
    flops: Count | None
    elementwise_flops: Count | None
    eager_bytes: Count | None
    fused_bytes: Count | None


class Copies(Record):
    """Copies between host and device in one step, one direction together."""

    direction: Literal["host to device", "device to host", "device to device"]
    calls: Count
    bytes: Count
    time_s: Seconds


class OpProfile(Facts):
    """Times of one training step, by PyTorch's profiler or by synchronised dispatch.

    Per-op times are medians over `iterations` profiled steps, and the rest belongs to none of
    them: Python, autograd, the profiler itself.
    """

    method: str
    iterations: Count
    step_time_s: Seconds  # wall time of a profiled step, the profiler's own cost included
    ops: tuple[OpTime, ...]  # longest first
    device_busy_share: Share | None  # of the step in which the device ran a kernel or a copy
    launch_gap_s: Seconds | None  # the device's idle time between first and last kernel
    copies: tuple[Copies, ...] | None

    @property
    def ops_time_s(self) -> float:
        """Time of all ops together."""
        return sum(op.time_s for op in self.ops)
