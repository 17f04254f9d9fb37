"""How many samples a device's memory holds, by measured peaks or by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.runs.groups import Group
from bench.config import a_sample
from bench.errors import Unknown
from bench.records import MemoryFootprint

#: Of the device's memory; the driver, the context and fragmentation need the rest.
_USABLE_SHARE = 0.95


@dataclass(frozen=True)
class MemoryModel:
    """Bytes of a step and of the device: need(b) = fixed + per_sample * b.

    Measured peaks of two batch sizes or more give both terms. With one or none, the cost model
    does (weights, gradients and optimizer state once, activations for each sample), raised to the
    one measured peak where that is higher; `source` says which.
    """

    fixed_bytes: float
    bytes_per_sample: float
    device_bytes: int
    source: str

    @classmethod
    def of_cost(
        cls,
        memory: MemoryFootprint,
        batch_size: int,
        device_bytes: int,
        peak: tuple[int, int] = (1, 0),
    ) -> MemoryModel:
        """Return the cost model's of a step of `batch_size`; `peak` is a batch's measured one."""
        per_sample = memory.activations_bytes / batch_size
        fixed = memory.total_bytes - memory.activations_bytes
        batch, peak_bytes = peak
        raised = max(1.0, peak_bytes / (fixed + per_sample * batch))
        source = "the cost model" + (", raised to the measured peak" if raised > 1 else "")
        return cls(fixed * raised, per_sample * raised, device_bytes, source)

    def need_bytes(self, batch_size: int) -> float:
        """Return what a step of `batch_size` needs."""
        return self.fixed_bytes + self.bytes_per_sample * batch_size

    @property
    def largest_batch(self) -> int:
        """The largest batch that fits into 95 % of the device's memory."""
        room = _USABLE_SHARE * self.device_bytes - self.fixed_bytes
        return max(int(room // (self.bytes_per_sample or 1)), 0)


def memory_of(curve: Sequence[Group]) -> MemoryModel | Unknown:
    """Return the memory model of a curve, or why there is none."""
    records = [run.record for group in curve for run in group.runs if run.record]
    if not records:
        return Unknown("imported runs do not tell how much memory they used and the device has")
    device_sizes: list[int] = []
    peaks: dict[int, int] = {}  # the highest of each batch size
    for record in records:
        if (environment := record.environment) is not None:
            on_cpu = environment.device.backend == "cpu"
            size = environment.memory_bytes if on_cpu else environment.device.memory_bytes
            device_sizes += [size] if size else []
        if (measured := record.measurement) and (resolved := record.resolved):
            peak = measured.peak_memory_reserved_bytes or measured.peak_memory_allocated_bytes
            if peak:
                peaks[resolved.batch_size] = max(peaks.get(resolved.batch_size, 0), peak)
    if not device_sizes:
        return Unknown("the device's memory is not recorded")
    device_bytes = min(device_sizes)
    if len(peaks) > 1:
        sizes, needs = np.array(sorted(peaks.items()), dtype=float).T
        per_sample, fixed = np.polyfit(sizes, needs, 1)
        if per_sample > 0:
            return MemoryModel(max(fixed, 0.0), per_sample, device_bytes, "measured peaks")
    costs = (record.complexity for record in records)
    cost = next((cost for cost in costs if cost and cost.memory.activations_bytes), None)
    if cost is None:
        each = a_sample(curve[0].sample)
        return Unknown(f"neither peaks of two batch sizes nor a cost model tell what {each} needs")
    peak_of = max(peaks.items(), default=(1, 0))
    return MemoryModel.of_cost(cost.memory, cost.batch_size, device_bytes, peak_of)
