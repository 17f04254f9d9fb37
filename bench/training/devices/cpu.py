"""The CPU: operations end when their call returns, so there is nothing to wait for."""

from __future__ import annotations

import os
from typing import Literal

import torch

from bench.machine import cpu_device_info
from bench.records import DeviceInfo, MathMode
from bench.training.devices.base import Device


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
        if mode == "fp32":
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
