"""NVIDIA's driver without torch: which device a CUDA program takes here, and what it is.

CUDA itself is asked which, as NVML numbers devices otherwise and ignores CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Callable
from typing import Any

from bench.machine.probes import ProbedFacts, UnknownFactError, gather, nvml_device, open_nvml

#: CUdevice_attribute of cuda.h.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


def open_driver() -> Any:
    """Return CUDA's driver library. Raises `UnknownFactError` where there is none."""
    name = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise UnknownFactError(f"no CUDA driver here ({name} does not load)") from None


def compute_capability(opener: Callable[[], Any] = open_driver) -> tuple[int, int]:
    """Return the compute capability of CUDA's device 0, such as (9, 0).

    Raises `UnknownFactError` where there is no driver or no device.
    """
    driver = opener()
    device, major, minor = _first_device(driver), ctypes.c_int(), ctypes.c_int()
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(major), _CAPABILITY_MAJOR, device)
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return major.value, minor.value


def device_uuid(opener: Callable[[], Any] = open_driver) -> str:
    """Return the UUID of CUDA's device 0, or of the slice that it is, as torch spells it.

    Raises `UnknownFactError` where there is no driver or no device.
    """
    driver = opener()
    found = (ctypes.c_ubyte * 16)()
    _call(driver, "cuDeviceGetUuid_v2", ctypes.byref(found), _first_device(driver))
    return str(uuid.UUID(bytes=bytes(found)))


def management_facts(uuid: str, nvml_opener: Callable[[], Any] = open_nvml) -> ProbedFacts:
    """Return `uuid`, `driver`, `power_limit_w` and `max_clock_mhz` of the device, by NVML.

    Without NVML the UUID is still CUDA's, which then means a whole GPU.
    """
    try:
        nvml = nvml_opener()
        full_uuid, handle = nvml_device(nvml, uuid)
    except UnknownFactError as error:
        reasons = dict.fromkeys(("driver", "power_limit_w", "max_clock_mhz"), str(error))
        return ProbedFacts({"uuid": f"GPU-{uuid}", **dict.fromkeys(reasons)}, reasons)
    return ProbedFacts({"uuid": full_uuid}, {}) | gather(
        {
            "driver": lambda: str(nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,  # mW
            "max_clock_mhz": lambda: float(
                nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
            ),
        }
    )


def _first_device(driver: Any) -> ctypes.c_int:
    device = ctypes.c_int()
    _call(driver, "cuInit", 0)
    _call(driver, "cuDeviceGet", ctypes.byref(device), 0)
    return device


def _call(driver: Any, function: str, *arguments: object) -> None:
    if code := getattr(driver, function)(*arguments):
        raise UnknownFactError(f"CUDA's driver shows no device: {function} answers {code}")
