"""How much memory a probe may still ask of a device."""

from __future__ import annotations

import psutil
import torch

from bench.training.devices import Device


def free_bytes(device: Device) -> int:
    """Return the bytes that can be allocated, what torch's own cache holds included."""
    if device.backend == "cuda":
        free, _ = torch.cuda.mem_get_info(device.torch_device)
        reserved = torch.cuda.memory_reserved(device.torch_device)
        return int(free + reserved - torch.cuda.memory_allocated(device.torch_device))
    if device.backend == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    available = int(psutil.virtual_memory().available)
    limit = device.info().memory_bytes  # a container's may be far below the machine's
    if limit is None:
        return available
    return max(0, min(available, limit - int(psutil.Process().memory_info().rss)))
