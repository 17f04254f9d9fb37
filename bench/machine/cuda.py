"""An NVIDIA GPU: what CUDA knows by index, and what NVML knows by UUID."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.machine.nvml import nvml_device, open_nvml
from bench.machine.probes import Gathered, UnknownFactError, gather
from bench.records import DeviceInfo


def cuda_device_info(index: int, nvml_opener: Callable[[], Any] = open_nvml) -> DeviceInfo:
    """Return the CUDA device `index`. Raises what torch raises where there is none."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    found = gather(
        {
            "memory_bytes": lambda: int(properties.total_memory),
            "last_level_cache_bytes": lambda: int(properties.L2_cache_size),
            "compute_capability": lambda: f"{properties.major}.{properties.minor}",
            "cores": lambda: int(properties.multi_processor_count),
        }
    ) | _management_facts(str(properties.uuid), nvml_opener)
    return DeviceInfo(
        backend="cuda", name=str(properties.name), missing=found.missing, **found.values
    )


def _management_facts(uuid: str, nvml_opener: Callable[[], Any]) -> Gathered:
    """Facts of NVML; without it the UUID is still CUDA's, which then means a whole GPU."""
    try:
        nvml = nvml_opener()
        full_uuid, handle = nvml_device(nvml, uuid)
    except UnknownFactError as error:
        reasons = dict.fromkeys(("driver", "power_limit_w", "max_clock_mhz"), str(error))
        return Gathered({"uuid": f"GPU-{uuid}", **dict.fromkeys(reasons)}, reasons)
    return Gathered({"uuid": full_uuid}, {}) | gather(
        {
            "driver": lambda: str(nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,  # mW
            "max_clock_mhz": lambda: float(
                nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
            ),
        }
    )
