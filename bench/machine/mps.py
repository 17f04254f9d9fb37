"""An Apple GPU: it shares the chip's name and memory with the processor."""

from __future__ import annotations

import re

from bench.machine.cpu import cpu_model
from bench.machine.probes import UnknownFactError, absent, gather, output_of, value_or_none
from bench.records import DeviceInfo


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
            "max_clock_mhz": "only told to root, by powermetrics",
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
