"""GPUs' drivers without torch: NVIDIA's by CUDA and NVML, AMD's by amdsmi, and Apple's cores.

Which device a CUDA program takes is asked of CUDA itself, as NVML numbers devices otherwise and
ignores CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import time
import uuid
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.errors import Unknown
from bench.machine import UnknownFactError, output_of, probe, reason_of, value_or_none

#: CUdevice_attribute of cuda.h.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


def open_driver() -> Any:
    """Return CUDA's driver library."""
    name = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise UnknownFactError(f"no CUDA driver here ({name} does not load)") from None


def compute_capability() -> tuple[int, int]:
    """Return the compute capability of CUDA's device 0, such as (9, 0)."""
    driver = open_driver()
    device, major, minor = _device(driver, 0), ctypes.c_int(), ctypes.c_int()
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(major), _CAPABILITY_MAJOR, device)
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return major.value, minor.value


def device_uuid(number: int = 0) -> str:
    """Return the UUID of CUDA's device `number`, or of the slice that it is, as torch spells it."""
    driver = open_driver()
    buffer = (ctypes.c_ubyte * 16)()
    _call(driver, "cuDeviceGetUuid_v2", ctypes.byref(buffer), _device(driver, number))
    return str(uuid.UUID(bytes=bytes(buffer)))


def _device(driver: Any, number: int) -> ctypes.c_int:
    device = ctypes.c_int()
    _call(driver, "cuInit", 0)
    _call(driver, "cuDeviceGet", ctypes.byref(device), number)
    return device


def _call(driver: Any, function: str, *arguments: object) -> None:
    if code := getattr(driver, function)(*arguments):
        raise UnknownFactError(f"CUDA's driver shows no device: {function} answers {code}")


def open_nvml() -> Any:
    """Return `pynvml`, NVIDIA's management library, initialised."""
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
    leaves out the prefix that marks a whole GPU or a slice of one.
    """
    candidates = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    for candidate in candidates:
        try:
            return candidate, nvml.nvmlDeviceGetHandleByUUID(candidate)
        except nvml.NVMLError:
            continue
    raise UnknownFactError(f"NVML knows no device {uuid}")


#: What a management library knows of a device beside its UUID.
_FACTS = ("driver", "power_limit_w", "max_clock_mhz", "application_clock_mhz", "pcie")


def management_facts(uuid: str, name: str = "") -> dict[str, Any]:
    """Return `uuid`, `driver`, power limit, clocks and `pcie` of the device, by NVML.

    Without NVML the UUID is still CUDA's, which then means a whole GPU. Nothing is said of a slice
    of a GPU, by its `name`, for which CUDA gives the UUID of the whole: that has other power.
    """
    try:
        nvml = open_nvml()
        full_uuid, handle = nvml_device(nvml, uuid)
    except UnknownFactError as error:
        return {"uuid": f"GPU-{uuid}", **dict.fromkeys(_FACTS, Unknown(str(error)))}
    if " MIG " in name and full_uuid.startswith("GPU-"):
        why = Unknown("the UUID that CUDA gives this slice of a GPU is that of the whole GPU")
        return dict.fromkeys(("uuid", *_FACTS), why)

    def pcie() -> str:
        """At most: an idle link falls back to its first generation."""
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        return f"gen {generation} x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"

    return {
        "uuid": full_uuid,
        "driver": probe(nvml.nvmlSystemGetDriverVersion),
        "power_limit_w": probe(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),  # mW
        "max_clock_mhz": probe(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        "application_clock_mhz": probe(
            lambda: nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM)
        ),
        "pcie": probe(pcie),
    }


_MIB_IN_MB = 2**20 / 1e6
#: What GPM has of the time between two samples (nvml.h, nvmlGpmMetricId_t), and the factor to the
#: series' unit: shares are in percent, traffic is in MiB/s.
GPM_SERIES = {
    "gpu_sm_active_percent": ("SM_UTIL", 1.0),
    "gpu_sm_occupancy_percent": ("SM_OCCUPANCY", 1.0),
    "gpu_tensor_active_percent": ("ANY_TENSOR_UTIL", 1.0),
    "gpu_fp64_active_percent": ("FP64_UTIL", 1.0),
    "gpu_fp32_active_percent": ("FP32_UTIL", 1.0),
    "gpu_fp16_active_percent": ("FP16_UTIL", 1.0),
    "gpu_dram_bandwidth_percent": ("DRAM_BW_UTIL", 1.0),
    "gpu_pcie_sent_mb_per_s": ("PCIE_TX_PER_SEC", _MIB_IN_MB),
    "gpu_pcie_received_mb_per_s": ("PCIE_RX_PER_SEC", _MIB_IN_MB),
    "gpu_nvlink_sent_mb_per_s": ("NVLINK_TOTAL_TX_PER_SEC", _MIB_IN_MB),
    "gpu_nvlink_received_mb_per_s": ("NVLINK_TOTAL_RX_PER_SEC", _MIB_IN_MB),
}
#: "The interval between these two samples should be greater than 100ms due to the internal sample
#: refresh rate" (NVML API reference, nvmlGpmMetricsGet).
_GPM_REFRESH_S = 0.1


class GpmCounters:
    """What an NVIDIA GPU counts of itself (GPM), without root and without a profiler.

    `nvmlGpmSetStreamingEnabled` is not called: it changes the device for everybody. Raises
    `UnknownFactError` where this device, its driver or our rights do not give it.
    """

    def __init__(
        self, nvml: Any, card: Any, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._nvml, self._card, self._clock = nvml, card, clock
        # Of a slice no document says whose bandwidth its percentages are of.
        if value_or_none(lambda: nvml.nvmlDeviceIsMigDeviceHandle(card)) or value_or_none(
            lambda: nvml.nvmlDeviceGetMigMode(card)[0]
        ):
            raise UnknownFactError("GPM: not read from a GPU in slices (MIG)")
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice:
                raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
            self._before, self._after = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
            for sample in (self._before, self._after):
                weakref.finalize(self, value_or_none, partial(nvml.nvmlGpmSampleFree, sample))
            nvml.nvmlGpmSampleGet(card, self._before)
            # Two transfers a clock, as NVIDIA's own deviceQuery has it for HBM and GDDR.
            self._bytes_per_clock = 2 * nvml.nvmlDeviceGetMemoryBusWidth(card) / 8
        except nvml.NVMLError as error:
            have = "GPUs from Hopper on have it, drivers from 520 on"
            raise UnknownFactError(f"GPM: {error} ({have})") from None
        self._before_s, self._dram_bytes = clock(), 0.0

    def read(self) -> tuple[dict[str, float | Unknown], float]:
        """Return each series since the last reading, and the bytes of DRAM up to now.

        Bytes are the share of the peak bandwidth times that peak, at the memory's clock of now.
        Raises `UnknownFactError` where there are none yet: the next reading then has them all.
        """
        nvml, now_s = self._nvml, self._clock()
        if now_s - self._before_s <= _GPM_REFRESH_S:
            raise UnknownFactError(f"GPM: two samples must be over {_GPM_REFRESH_S} s apart")
        nvml.nvmlGpmSampleGet(self._card, self._after)
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_SERIES)
        asked.sample1, asked.sample2 = self._before, self._after
        for place, (metric, _) in enumerate(GPM_SERIES.values()):
            asked.metrics[place].metricId = getattr(nvml, f"NVML_GPM_METRIC_{metric}")
        nvml.nvmlGpmMetricsGet(asked)
        series: dict[str, float | Unknown] = {}
        for metric, (name, (_, factor)) in zip(asked.metrics, GPM_SERIES.items(), strict=False):
            if metric.nvmlReturn or not math.isfinite(metric.value):
                series[name] = Unknown(f"GPM: error {metric.nvmlReturn}, value {metric.value}")
            else:
                series[name] = factor * metric.value
        if isinstance(share := series["gpu_dram_bandwidth_percent"], Unknown):
            raise UnknownFactError(share.reason)
        clock_hz = 1e6 * nvml.nvmlDeviceGetClockInfo(self._card, nvml.NVML_CLOCK_MEM)
        peak_bytes = clock_hz * self._bytes_per_clock * (now_s - self._before_s)
        self._dram_bytes += share / 100 * peak_bytes
        self._before, self._after, self._before_s = self._after, self._before, now_s
        return series, self._dram_bytes


#: How the UUIDs of AMD's devices begin, in records; the ASIC's serial number follows.
AMD_UUID = "AMD-"


def open_amdsmi() -> Any:
    """Return `amdsmi`, AMD's management library, initialised."""
    try:
        import amdsmi
    except Exception as error:  # without its C library the import fails in other ways
        raise UnknownFactError(f"the package amdsmi cannot be used: {error}") from None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise UnknownFactError(f"amdsmi: {error}") from None
    return amdsmi


def amd_uuid(torch_uuid: str) -> str:
    """Return what identifies an AMD device, from the UUID that torch gives it.

    HIP's 16 bytes are the 16 hexadecimal digits of the ASIC's serial number, as text.
    """
    digits = bytes.fromhex(torch_uuid.replace("-", ""))
    return AMD_UUID + digits.decode("ascii", "replace").lower()


def amd_device(smi: Any, device_uuid: str) -> Any:
    """Return the handle of the device of that UUID."""
    serial = device_uuid.removeprefix(AMD_UUID).lstrip("0")
    for handle in smi.amdsmi_get_processor_handles():
        printed = str(smi.amdsmi_get_gpu_asic_info(handle)["asic_serial"])
        if printed.lower().removeprefix("0x").lstrip("0") == serial:
            return handle
    raise UnknownFactError(f"amdsmi knows no device {device_uuid}")


def number_of(value: Any) -> float:
    """Return a figure of amdsmi."""
    if value == "N/A":
        raise UnknownFactError("amdsmi answers N/A")
    return float(value)


def amd_clock_mhz(smi: Any, handle: Any, *names: str) -> float:
    """Return the figure of the graphics clock that has the first of `names` that is there."""
    clock = smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)
    return number_of(next((clock[name] for name in names if name in clock), "N/A"))


def amd_management_facts(device_uuid: str) -> dict[str, Any]:
    """Return `uuid`, `driver`, `power_limit_w` and `max_clock_mhz` of the device, by amdsmi."""
    try:
        smi = open_amdsmi()
        handle = amd_device(smi, device_uuid)
    except Exception as error:
        return {"uuid": device_uuid, **dict.fromkeys(_FACTS, Unknown(reason_of(error)))}

    def power_limit_w() -> float:
        return number_of(smi.amdsmi_get_power_cap_info(handle)["power_cap"]) / 1e6  # microwatts

    return {
        **dict.fromkeys(_FACTS, Unknown("not asked of this device")),
        "uuid": device_uuid,
        "driver": probe(lambda: str(smi.amdsmi_get_gpu_driver_info(handle)["driver_version"])),
        "power_limit_w": probe(power_limit_w),
        "max_clock_mhz": probe(amd_clock_mhz, smi, handle, "max_clk"),
    }


def apple_gpu_cores() -> int:
    """Return the GPU's cores: chips of one name are sold with different numbers of them."""
    cores = re.search(
        r'"gpu-core-count" = (\d+)', output_of("ioreg", "-rc", "AGXAccelerator", "-d", "1")
    )
    if cores is None:
        raise UnknownFactError("ioreg does not list gpu-core-count")
    return int(cores[1])
