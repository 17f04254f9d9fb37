"""What a profiler's trace showed of training steps that somebody recorded."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from bench.config import THROUGHPUT, Sample, rate_metric
from bench.config.resolved import MathMode
from bench.records.base import (
    Amount,
    Count,
    Facts,
    Instant,
    Phase,
    PositiveCount,
    PositiveRate,
    Record,
    Seconds,
)
from bench.records.counters import GpuCounters


class IdleTime(Record):
    """Time in which the device of a step had nothing to do, for one cause.

    `call` is the runtime's call that the host was in, `op` the op or mark around it.
    """

    cause: str
    time_s: Seconds
    call: str | None = None
    op: str | None = None


class TracedStep(Facts):
    """One step of a trace; the device's figures are None where the trace has no device.

    `device_busy_s` is the union of the step's kernels, copies and fills: `computation_s`, then
    what no computation hid of communication, then of copies. These add up to it, unless steps
    overlap on the device: then work of another step hides some. `idle_s` is what no step's device
    work covers; `idle` adds up to it, longest first.
    """

    name: str
    wall_s: Seconds
    device_busy_s: Seconds | None
    computation_s: Seconds | None
    exposed_communication_s: Seconds | None
    exposed_copies_s: Seconds | None
    communication_s: Seconds | None  # hidden or not
    idle_s: Seconds | None
    idle: tuple[IdleTime, ...]

    @property
    def idle_s_by_cause(self) -> dict[str, float]:
        """Idle seconds of each cause, in whatever calls and ops; the longest first."""
        sums_s: dict[str, float] = {}
        for idle in self.idle:
            sums_s[idle.cause] = sums_s.get(idle.cause, 0.0) + idle.time_s
        return dict(sorted(sums_s.items(), key=lambda item: -item[1]))

    @property
    def device_time_s(self) -> float | None:
        """What the step costs its device: what nothing hides, and idle time.

        Where the host runs ahead, this is the step's time, and the mark's duration is not.
        """
        if self.computation_s is None or self.idle_s is None:
            return None
        exposed_s = (self.exposed_communication_s or 0.0) + (self.exposed_copies_s or 0.0)
        return self.computation_s + exposed_s + self.idle_s


class TracedOp(Facts):
    """All calls of one op with the same shapes, per step; FLOP and bytes are of all its calls.

    `time_s` is the own duration of its kernels, whatever ran beside them; `exclusive_s` its share
    of the device's time, in which no nanosecond is in two ops.
    """

    label: str
    op: str  # without aten::
    phase: Phase | None
    shapes: str  # such as 32x3x224x224, 64x3x7x7
    calls: Amount
    time_s: Seconds
    exclusive_s: Seconds
    kernels: tuple[str, ...]  # that it launched, the longest first
    flops: Amount | None
    elementwise_flops: Amount | None
    eager_bytes: Amount | None
    fused_bytes: Amount | None
    causal_skipped_flops: Amount = 0  # of `flops`
    fp32_flops: ClassVar[float] = 0.0  # a trace is held against the arithmetic of most of its time


class TraceRecord(Facts):
    """One trace, read: the file `record.json` of a record folder that holds the trace too."""

    schema_version: Literal[1] = 1
    kind: Literal["trace"] = "trace"
    record_id: str
    created: Instant  # UTC; when it was read
    source_file: str  # its name, with its folder's where that says more
    source_sha256: str
    campaign: str
    env: str | None  # label of the machine
    device: str | None
    device_cores: Count | None  # multiprocessors
    math_mode: MathMode | None  # of most of the time of its convolutions and products
    rank: Count | None
    world_size: Count | None
    arch: str | None  # with batch size and precision, as given by who read it
    batch_size: PositiveCount | None
    precision: str | None
    sample: Sample = "image"  # what a batch has `batch_size` of; records of before say nothing
    throughput_samples_per_s: PositiveRate | None
    step_time_s: Seconds  # from the end of a step on the device to the next one's
    step_flops: Count | None  # of the model's training step, with its bytes
    step_eager_bytes: Count | None
    step_fused_bytes: Count | None
    bound: str
    findings: tuple[str, ...]  # what was found, in sentences
    advice: tuple[str, ...]
    counters: GpuCounters | None  # added up over the kernels that the trace has them of
    steps: tuple[TracedStep, ...]
    ops: tuple[TracedOp, ...]  # longest first

    @property
    def known_steps(self) -> tuple[TracedStep, ...]:
        """Those with a time on the device, or all; the ops are means over them."""
        known = tuple(step for step in self.steps if step.device_time_s is not None)
        return known or self.steps

    @model_validator(mode="before")
    @classmethod
    def _as_today(cls, data: Any) -> Any:
        """Read what `_as_written` wrote, and records in which every sample is an image."""
        return _renamed(data, _OF_IMAGES, THROUGHPUT) if isinstance(data, dict) else data

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write images under the names that they always had: a trace's id follows from its text."""
        written: dict[str, Any] = handler(self)
        if self.sample != "image":
            return written
        written.pop("sample", None)
        return _renamed(written, THROUGHPUT, _OF_IMAGES)


_OF_IMAGES = rate_metric("image")


def _renamed(record: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return a trace's record with one of its facts under another name, in its place."""
    renamed = {new if name == old else name: value for name, value in record.items()}
    if isinstance(missing := renamed.get("missing"), dict):
        renamed["missing"] = {new if name == old else name: why for name, why in missing.items()}
    return renamed
