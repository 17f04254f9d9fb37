"""An NVIDIA GPU: work is queued on a stream, so times come from events in that stream.

A torch for ROCm calls an AMD GPU CUDA too, and so does this project; it was never tried on one.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch

from bench.errors import Problem, UnsupportedError
from bench.machine import cuda_device_info
from bench.records import DeviceInfo, MathMode
from bench.records.journal import Clock
from bench.training.devices.base import Device, IterationTimer

#: Iterations that the host may be ahead of the device: enough that the device never waits for the
#: next one, so few that the window ends in time and that no wait for the device looks like one for
#: data.
_MOST_AHEAD = 4
#: First compute capability whose tensor cores (fp16: packed arithmetic) take a mode.
#: CUDA C++ Programming Guide, "Arithmetic Instructions" and "Compute Capabilities".
_FIRST_CAPABILITY = {"fp32": (1, 0), "fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0)}


class CudaEventTimer(IterationTimer):
    """An event after every iteration, read only after the window's last synchronisation.

    The host's clock is not asked between iterations. A step of a few launches, a CUDA graph's,
    would let the host queue the whole window: it waits for the iteration `_MOST_AHEAD` before.
    """

    kind = "cuda_events"

    def __init__(self, clock: Clock) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Record an event in the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        if len(self._events) > _MOST_AHEAD:
            self._events[-1 - _MOST_AHEAD].synchronize()

    def times_s(self) -> list[float]:
        """Seconds between neighbouring events (resolution about 0.5 us)."""
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(self._events)]


def missing_kernels(index: int) -> Problem | None:
    """Return that this build of torch has no kernels for device `index`, or None.

    Kernels run on later chips of their major version; PTX is compiled for any later chip.
    """
    capability = torch.cuda.get_device_capability(index)
    built_for = torch.cuda.get_arch_list()
    if not built_for:  # not said
        return None
    for architecture in built_for:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", architecture)
        if found is None:  # not NVIDIA's
            return None
        least = (int(found[2]), int(found[3]))
        if least <= capability and (found[1] == "compute" or least[0] == capability[0]):
            return None
    return Problem(
        f"torch {torch.__version__} has kernels for {', '.join(built_for)} and none for "
        f"{torch.cuda.get_device_name(index)} (sm_{capability[0]}{capability[1]})",
        "install a build of torch for an older CUDA, such as 12.6, or use backend=cpu",
    )


class CudaDevice(Device):
    """A CUDA device, by default the first; `CUDA_VISIBLE_DEVICES` chooses which that is."""

    backend: Literal["cuda"] = "cuda"
    timer = CudaEventTimer
    default_batch_size = 128
    pins_memory = True
    supports_cuda_graphs = True
    profiler_stays = True  # CUPTI's callbacks

    def __init__(self, local_rank: int = 0) -> None:
        if local_rank:
            torch.cuda.set_device(local_rank)
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        if lacking := missing_kernels(self.torch_device.index):
            raise UnsupportedError(f"backend='cuda': {lacking}")

    @classmethod
    def count(cls) -> int | None:
        """Return the number of devices that this process sees."""
        return torch.cuda.device_count()

    def synchronize(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize(self.torch_device)

    def info(self) -> DeviceInfo:
        """Return the card's identity, limits and driver."""
        return cuda_device_info(self.torch_device.index)

    def reset_peak_memory(self) -> None:
        """Restart the caching allocator's peaks."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def peak_memory_bytes(self) -> tuple[int, int] | None:
        """Peaks of the caching allocator."""
        return (
            torch.cuda.max_memory_allocated(self.torch_device),
            torch.cuda.max_memory_reserved(self.torch_device),
        )

    def release_cached_memory(self) -> None:
        """Empty the caching allocator's free blocks."""
        torch.cuda.empty_cache()

    def hidden_syncs(self, step: Callable[[], object]) -> int | None:
        """Count torch's own warnings of synchronising calls."""
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        self.synchronize()
        return sum("synchroniz" in str(item.message).lower() for item in caught)

    def channels_last(self, mode: MathMode) -> tuple[bool, ...]:
        """NHWC is the layout of tensor cores; without them cuDNN's fp32 kernels are of both."""
        return (False, True) if mode == "fp32" else (True,)

    def native_math(self, mode: str) -> bool:
        """By compute capability; AMD's have no TF32, and torch's numbers for them are as high.

        Where NVIDIA_TF32_OVERRIDE=0 switches TF32 off in NVIDIA's libraries, there is none either.
        """
        switched_off = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
        if mode == "tf32" and (switched_off or torch.version.hip is not None):
            return False
        return torch.cuda.get_device_capability(self.torch_device) >= _FIRST_CAPABILITY[mode]
