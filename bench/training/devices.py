"""The hardware a step runs on: how to wait for it, time it, and what it is.

`Device` answers for one with nothing to wait for. A torch for ROCm calls an AMD GPU CUDA too, and
so does this project; it was never tried on one.
"""

from __future__ import annotations

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch

from bench.errors import Problem, UnsupportedError
from bench.machine import probe, value_or_none
from bench.machine.cpu import cpu_device_info, cpu_model
from bench.machine.gpu_drivers import (
    amd_management_facts,
    amd_uuid,
    apple_gpu_cores,
    management_facts,
)
from bench.machine.limits import peak_memory_bytes
from bench.records import DeviceInfo, MathMode
from bench.records.journal import Clock


class IterationTimer:
    """Times the iterations of one window without stopping the device between them.

    The base reads the host's clock, for devices whose operations end when their call returns.
    """

    kind: Literal["wall", "cuda_events", "mps_events"] = "wall"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[float] = []

    def mark(self) -> None:
        """Mark the start of the first iteration, or the end of one, where the next starts."""
        self._marks.append(self._clock())

    def times_s(self) -> list[float]:
        """Seconds of each iteration; the device has been synchronised."""
        return [end - begin for begin, end in pairwise(self._marks)]

    def ended_times_s(self) -> list[float]:
        """Seconds of the iterations that have ended for certain, without a wait for the device."""
        return self.times_s()


#: Less is no memory for a step's tensors.
_GROWTH_BYTES = 2**24


class Device(ABC):
    """A backend: how to wait for it, time it, and what it is.

    The base is a device whose operations end when their call returns, and which counts nothing.
    """

    backend: Literal["cpu", "cuda", "mps"]
    torch_device: torch.device
    timer: type[IterationTimer] = IterationTimer
    default_batch_size: int
    prefers_fp32_depthwise = False
    pins_memory = False
    supports_cuda_graphs = False
    #: Whether the fused optimizer takes the loss scaler's factor and leaves a step out by itself.
    fuses_loss_scaling = True

    def __init__(self, local_rank: int = 0) -> None:
        """Take this machine's device number `local_rank`, where there are several."""

    @classmethod
    def count(cls) -> int | None:
        """How many processes of this machine can have one each; None: they share it."""
        return 1

    @abstractmethod
    def info(self) -> DeviceInfo:
        """Return what is known of the device."""

    def channels_last(self, mode: MathMode) -> tuple[bool, ...]:
        """Whether convolutions in `mode` are channels-last; several where it depends on them."""
        return (False,)

    @abstractmethod
    def native_math(self, mode: str) -> bool:
        """Whether the hardware itself computes convolutions and products in `mode`."""

    def synchronize(self) -> None:
        """Return when every operation queued on the device has ended."""

    def reset_peak_memory(self) -> None:
        """Restart the accounting of peak memory."""

    def peak_memory_bytes(self) -> tuple[int, int] | None:
        """Peak bytes (allocated, reserved) since the reset, or None if the backend counts none."""
        return None

    def release_cached_memory(self) -> None:
        """Give back what the allocator holds and nothing uses."""

    def memory_obtained(self) -> int:
        """Return a count that rises when the step obtains memory from the system: its peak."""
        return (value_or_none(peak_memory_bytes) or 0) // _GROWTH_BYTES

    def hidden_syncs(self, step: Callable[[], object]) -> int | None:
        """Run `step` once and count the host's waits for the device in it, or None untried."""
        return None


class CpuDevice(Device):
    """All cores that this process may use, as one device."""

    backend: Literal["cpu"] = "cpu"
    torch_device = torch.device("cpu")
    default_batch_size = 16
    # oneDNN has no fast bf16 backward for a stride: mobilenet_v2 amp 46.7 against 32.4 images/s.
    prefers_fp32_depthwise = True

    @classmethod
    def count(cls) -> int | None:
        """Processes share the cores."""
        return None

    def info(self) -> DeviceInfo:
        """Return the processor's name, caches and cores."""
        return cpu_device_info()

    def channels_last(self, mode: MathMode) -> tuple[bool, ...]:
        """NHWC, oneDNN's layout: resnet18 fp32 16.6 against 13.3 images/s on 2 cores."""
        return (True,)

    def native_math(self, mode: str) -> bool:
        """Whether the kernels multiply in `mode` with the processor's own instructions.

        By torch's probes of the processor, and by the limit of instructions that oneDNN, which
        computes convolutions and products in 16 bits, reads from its variables.
        """
        if mode in ("fp32", "fp64"):
            return True
        limit = next((os.environ[name] for name in _LIMITS if name in os.environ), "")
        if limit.upper() in _WITHOUT.get(mode, ()):
            return False
        return any(_capability(name) for name in _INSTRUCTIONS.get(mode, ()))


#: Names in `torch.cpu.get_capabilities()` that multiply in a mode: x86, then Arm.
_INSTRUCTIONS = {
    "bf16": ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "arm_fp16_arith", "fp16"),
}
#: oneDNN's variable, and the same by its earlier name.
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_WITHOUT_16_BITS = frozenset(
    {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
)
#: Its values without instructions that multiply in a mode (oneDNN Developer Guide, "CPU Dispatcher
#: Control"). AVX2_VNNI_2 only converts.
_WITHOUT = {"bf16": _WITHOUT_16_BITS, "fp16": _WITHOUT_16_BITS | {"AVX512_CORE_BF16"}}
#: The same questions as functions, for a torch without `get_capabilities` (before 2.12).
_PROBES = {
    "avx512_bf16": "_is_avx512_bf16_supported",
    "amx_bf16": "_is_amx_tile_supported",
    "amx_fp16": "_is_amx_fp16_supported",
}


def _capability(name: str) -> bool:
    if hasattr(torch.cpu, "get_capabilities"):
        return bool(torch.cpu.get_capabilities().get(name, False))
    probe = getattr(torch.cpu, _PROBES.get(name, ""), None)
    return bool(probe()) if probe else False


#: Iterations that the host may be ahead of the device: enough that the device never waits for the
#: next one, so few that the window ends in time and that no wait for the device looks like one for
#: data.
_MOST_AHEAD = 4
#: First compute capability whose tensor cores (fp16: packed arithmetic) take a mode.
#: CUDA C++ Programming Guide, "Arithmetic Instructions" and "Compute Capabilities".
_FIRST_CAPABILITY = {"fp32": (1, 0), "fp64": (1, 3), "fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0),
                     "fp8": (8, 9)}  # fmt: skip


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
        return self._times_s(self._events)

    def ended_times_s(self) -> list[float]:
        """Those whose events were waited for."""
        return self._times_s(self._events[:-_MOST_AHEAD])

    def _times_s(self, events: Sequence[torch.cuda.Event]) -> list[float]:
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]


def missing_kernels(index: int) -> Problem | None:
    """Return that this build of torch has no kernels for device `index`, or None.

    Kernels run on later chips of their major version; PTX is compiled for any later chip.
    """
    capability = torch.cuda.get_device_capability(index)
    built_for = torch.cuda.get_arch_list()
    if not built_for:  # not said
        return None
    for architecture in built_for:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", architecture)
        if match is None:  # not NVIDIA's
            return None
        least = (int(match[2]), int(match[3]))
        if least <= capability and (match[1] == "compute" or least[0] == capability[0]):
            return None
    return Problem(
        f"torch {torch.__version__} has kernels for {', '.join(built_for)} and none for "
        f"{torch.cuda.get_device_name(index)} (sm_{capability[0]}{capability[1]})",
        "install a build of torch for an older CUDA, such as 12.6, or use backend=cpu",
    )


def cuda_device_info(index: int) -> DeviceInfo:
    """Return the device `index` of CUDA, or of a torch for ROCm, which calls AMD's devices so too.

    Raises what torch raises where there is none.
    """
    properties = torch.cuda.get_device_properties(index)
    name, uuid = str(properties.name), str(properties.uuid)
    if torch.version.hip is not None:
        capability = str(properties.gcnArchName).partition(":")[0]  # its architecture, `gfx942`
        facts = amd_management_facts(amd_uuid(uuid))
    else:
        capability = f"{properties.major}.{properties.minor}"
        facts = management_facts(uuid, name)
    return DeviceInfo(
        backend="cuda",
        name=name,
        memory_bytes=properties.total_memory,
        last_level_cache_bytes=probe(lambda: properties.L2_cache_size),
        compute_capability=capability,
        cores=properties.multi_processor_count,
        **facts,
    )


class CudaDevice(Device):
    """A CUDA device, by default the first; `CUDA_VISIBLE_DEVICES` chooses which that is."""

    backend: Literal["cuda"] = "cuda"
    timer = CudaEventTimer
    default_batch_size = 128
    pins_memory = True
    supports_cuda_graphs = True

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

    def memory_obtained(self) -> int:
        """Count the allocator's calls of cudaMalloc."""
        return int(torch.cuda.memory_stats(self.torch_device)["num_device_alloc"])

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
        """By compute capability; AMD's, whose numbers are as high, have no TF32 nor NVIDIA's fp8.

        Where NVIDIA_TF32_OVERRIDE=0 switches TF32 off in NVIDIA's libraries, there is none either.
        """
        switched_off = mode == "tf32" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
        if switched_off or (mode in ("tf32", "fp8") and torch.version.hip is not None):
            return False
        return torch.cuda.get_device_capability(self.torch_device) >= _FIRST_CAPABILITY[mode]


class SynchronizedTimer(IterationTimer):
    """Wall time of each iteration, the queue drained at its end."""

    def mark(self) -> None:
        """Wait for what is queued, then mark."""
        torch.mps.synchronize()
        super().mark()


class MpsDevice(Device):
    """The GPU of Apple silicon."""

    backend: Literal["mps"] = "mps"
    timer = SynchronizedTimer
    torch_device = torch.device("mps")
    default_batch_size = 64
    fuses_loss_scaling = False
    # Never channels-last: NHWC makes the backward convolution up to 30 times slower there.

    def synchronize(self) -> None:
        """Wait for the device's command queue."""
        torch.mps.synchronize()

    def info(self) -> DeviceInfo:
        """Return the chip's name and memory: what Metal recommends to use at most."""
        return DeviceInfo.of(
            "not asked of an Apple GPU",
            {"last_level_cache_bytes": "Apple does not publish the system cache's size"},
            backend="mps",
            name=value_or_none(cpu_model) or "Apple GPU",
            memory_bytes=probe(torch.mps.recommended_max_memory),
            cores=probe(apple_gpu_cores),
        )

    def native_math(self, mode: str) -> bool:
        """Fp32 and fp16; Apple documents no native bf16 for every chip that MPS runs on."""
        return mode in ("fp32", "fp16")


def open_device(backend: str, *, local_rank: int = 0, devices: int = 1) -> Device:
    """Return the device of `backend`; auto takes CUDA, then MPS, then the CPU.

    `local_rank` is this process's number among the `devices` processes of this machine that have
    one each. Raises `UnsupportedError` where torch cannot use the backend on this machine, or
    finds too few devices.
    """
    usable: dict[str, tuple[Callable[[], bool], type[Device], str]] = {
        "cuda": (
            torch.cuda.is_available,
            CudaDevice,
            "an NVIDIA GPU with a driver, or an AMD one",
        ),
        "mps": (torch.backends.mps.is_available, MpsDevice, "Apple silicon with macOS 14"),
        "cpu": (lambda: True, CpuDevice, "a processor"),
    }
    if backend == "auto":
        backend = next(name for name, (available, _, _) in usable.items() if available())
    available, kind, needs = usable[backend]
    if not available():
        here = ", ".join(name for name, (is_here, _, _) in usable.items() if is_here())
        raise UnsupportedError(
            f"backend={backend!r}: torch {torch.__version__} finds no {backend} device here "
            f"(it needs {needs}); use backend={here}, or ask mlproject doctor why"
        )
    count = kind.count()
    if count is not None and devices > count:
        raise UnsupportedError(
            f"devices={devices}: torch finds {count} here for backend={backend}; use that"
        )
    return kind(local_rank)
