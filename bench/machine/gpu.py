"""GPUs as devices: NVIDIA's by CUDA and NVML, AMD's by ROCm, Apple's by Metal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from bench.machine.cpu import cpu_model
from bench.machine.gpu_drivers import (
    amd_management_facts,
    amd_uuid,
    management_facts,
    open_amdsmi,
)
from bench.machine.probes import (
    UnknownFactError,
    absent,
    gather,
    open_nvml,
    output_of,
    value_or_none,
)
from bench.records import DeviceInfo


def cuda_device_info(
    index: int,
    nvml_opener: Callable[[], Any] = open_nvml,
    smi_opener: Callable[[], Any] = open_amdsmi,
) -> DeviceInfo:
    """Return the device `index` of CUDA, or of a torch for ROCm, which calls AMD's devices so too.

    Raises what torch raises where there is none.
    """
    import torch

    properties = torch.cuda.get_device_properties(index)
    is_amd = torch.version.hip is not None
    found = gather(
        {
            "memory_bytes": lambda: int(properties.total_memory),
            "last_level_cache_bytes": lambda: int(properties.L2_cache_size),
            "compute_capability": lambda: _capability(properties, is_amd=is_amd),
            "cores": lambda: int(properties.multi_processor_count),
        }
    )
    if is_amd:
        found |= amd_management_facts(amd_uuid(str(properties.uuid)), smi_opener)
    else:
        found |= management_facts(str(properties.uuid), nvml_opener, name=str(properties.name))
    return DeviceInfo(
        backend="cuda", name=str(properties.name), missing=found.missing, **found.values
    )


def _capability(properties: Any, *, is_amd: bool) -> str:
    """The compute capability, `9.0`; of an AMD device its architecture, `gfx942`."""
    if is_amd:
        return str(properties.gcnArchName).partition(":")[0]
    return f"{properties.major}.{properties.minor}"


def mps_device_info() -> DeviceInfo:
    """Return the GPU of Apple silicon; `memory_bytes` is what Metal recommends to use at most."""
    import torch

    found = gather(
        {
            "memory_bytes": lambda: int(torch.mps.recommended_max_memory()),
            "cores": _gpu_cores,
        }
    ) | absent(
        {
            "uuid": "Apple GPUs have no UUID",
            "last_level_cache_bytes": "Apple does not publish the system cache's size",
            "compute_capability": "not an NVIDIA device",
            "driver": "part of macOS",
            "power_limit_w": "Apple does not publish a limit",
            "max_clock_mhz": "only root can read it, by powermetrics",
        }
    )
    name = value_or_none(cpu_model) or "Apple GPU"
    return DeviceInfo(backend="mps", name=name, missing=found.missing, **found.values)


def _gpu_cores() -> int:
    """GPU cores: chips of one name are sold with different numbers of them."""
    listing = output_of("ioreg", "-rc", "AGXAccelerator", "-d", "1")
    cores = re.search(r'"gpu-core-count" = (\d+)', listing)
    if cores is None:
        raise UnknownFactError("ioreg does not list gpu-core-count")
    return int(cores[1])
