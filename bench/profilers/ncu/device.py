"""What CUDA's driver says of the device that the worker will compute on. No torch, no context."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from bench.machine.probes import UnknownFactError

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

    CUDA itself is asked, as NVML numbers devices otherwise and ignores CUDA_VISIBLE_DEVICES.
    Raises `UnknownFactError` where there is no driver or no device.
    """
    driver = opener()
    device = ctypes.c_int()
    _call(driver, "cuInit", 0)
    _call(driver, "cuDeviceGet", ctypes.byref(device), 0)
    return (
        _attribute(driver, _CAPABILITY_MAJOR, device),
        _attribute(driver, _CAPABILITY_MINOR, device),
    )


def _attribute(driver: Any, attribute: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
    return value.value


def _call(driver: Any, function: str, *arguments: Any) -> None:
    if code := getattr(driver, function)(*arguments):
        raise UnknownFactError(f"CUDA's driver shows no device: {function} answers {code}")
