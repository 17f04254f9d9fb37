"""NVIDIA's management library, opened by the device's UUID."""

from __future__ import annotations

from typing import Any

from bench.machine.probes import UnknownFactError


def open_nvml() -> Any:
    """Return the `pynvml` module, initialised. Raises `UnknownFactError` with what is wrong."""
    try:
        import pynvml
    except ImportError:
        raise UnknownFactError("the package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnknownFactError(f"NVML: {error}") from None
    return pynvml


def nvml_device(nvml: Any, uuid: str) -> tuple[str, Any]:
    """Return NVML's own UUID and its handle of the device that CUDA calls `uuid`.

    By UUID, because CUDA_VISIBLE_DEVICES renumbers devices for CUDA and not for NVML. CUDA
    leaves out the prefix that marks a whole GPU or a slice of one. Raises `UnknownFactError`.
    """
    candidates = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    for candidate in candidates:
        try:
            return candidate, nvml.nvmlDeviceGetHandleByUUID(candidate)
        except nvml.NVMLError:
            continue
    raise UnknownFactError(f"NVML knows no device {uuid}")
