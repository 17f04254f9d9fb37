"""What a run was measured on: the machine, the software, and the device."""

from bench.machine.cpu import (
    cpu_caches,
    cpu_device_info,
    cpu_model,
    others_cpu_s,
    usable_cores,
)
from bench.machine.environment import cuda_device_info, mps_device_info, read_environment

__all__ = [
    "cpu_caches",
    "cpu_device_info",
    "cpu_model",
    "cuda_device_info",
    "mps_device_info",
    "others_cpu_s",
    "read_environment",
    "usable_cores",
]
