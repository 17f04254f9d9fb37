"""All facts of the machine, its GPU and the software for one record, and names made of them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from bench.errors import Unknown
from bench.machine.cpu import cpu_model, cpu_signature, physical_cores, usable_cores
from bench.machine.gpu_drivers import (
    amd_management_facts,
    amd_uuid,
    management_facts,
    open_amdsmi,
)
from bench.machine.limits import memory_bytes
from bench.machine.probes import (
    ROOT,
    UnknownFactError,
    open_nvml,
    output_of,
    probe,
    value_or_none,
)
from bench.machine.repository import NO_MODEL_CODE, repository_facts
from bench.machine.surroundings import METADATA_SERVER, cloud_facts, container, host, virtualization
from bench.records import DeviceInfo, Environment, ModelCode


def read_environment(
    device: DeviceInfo,
    records_folder: Path,
    label: str,
    code: ModelCode | Unknown = NO_MODEL_CODE,
    root: Path = ROOT,
    metadata_server: tuple[str, int] = METADATA_SERVER,
) -> Environment:
    """Describe the machine and the software; `label` auto is made from the device's name.

    `code` is the source of the model that was trained, if any.
    What cannot be read is None with its reason: no error of a probe comes out. Takes about
    0.1 s, and up to 3 s more on a cloud whose metadata server does not answer.
    """
    hypervisor = probe(virtualization, root)
    return Environment(
        label=environment_label(device) if label == "auto" else label,
        os=os_name(),
        kernel=kernel_name(),
        machine=platform.machine(),
        cpu_cores_usable=usable_cores(root),
        memory_bytes=memory_bytes(root),
        variables=speed_variables(),
        device=device,
        virtualization=hypervisor,
        cpu_model=probe(cpu_model, root),
        cpu_signature=probe(cpu_signature, root),
        cpu_cores_physical=probe(physical_cores),
        storage=probe(storage, records_folder),
        container=probe(container, root),
        host=probe(host, root),
        power_source=probe(power_source, hypervisor or None),
        model_code=code,
        **software_facts(),
        **repository_facts(),
        **cloud_facts(root, metadata_server),
    )


#: What makers add to a processor's name: marks, clock, core count, the graphics beside it.
_NOISE = re.compile(
    r"\((?:r|tm|c)\)|\bcpu\b|@.*|\b(?:\d+|dual|quad|six|eight)-core\b|\bprocessor\b|\bwith .*"
)
_MAX_LABEL_LENGTH = 64


def environment_label(device: DeviceInfo) -> str:
    """Return `nvidia-h200`, `intel-core-i9-14900hx`, `apple-m3-max` or `apple-m3-max-cpu`.

    An Apple chip's CPU and GPU bear one name, so the CPU says that it is one.
    """
    plain = _NOISE.sub(" ", device.name.lower())
    slug = re.sub(r"[^a-z0-9._]+", "-", plain).strip("-._") or device.backend
    suffix = "-cpu" if device.backend == "cpu" and slug.startswith("apple-") else ""
    return slug[: _MAX_LABEL_LENGTH - len(suffix)].rstrip("-._") + suffix


#: OpenMP of GCC and LLVM, oneMKL, oneDNN, OpenBLAS, cuBLAS, cuDNN, NCCL, torch's switches for
#: these, and its own compiler.
_FAMILIES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_"),
    *("CUBLAS_", "CUDNN_", "NCCL_", "TORCH_BLAS_", "TORCH_CUDNN_", "TORCH_NCCL_"),
    *("TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_"),
    *("MIOPEN_", "PYTORCH_MIOPEN_", "ROCBLAS_", "HIPBLASLT_"),
)
#: `allocator` says where a step's memory comes from, so glibc's variables are not here.
_NAMES = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "THP_MEM_ALLOC_ENABLE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "TORCH_COMPILE_DISABLE",
    }
)
#: Where files are changes no speed, and may name a person.
_PLACES = ("_DIR", "_FILE", "_HOME", "_PATH")
#: A record goes to a server and into reports: of what may be a secret it has the name alone.
_SECRET_NAME = re.compile(r"URL|URI|KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH")
_SECRET_VALUE = re.compile(r"://[^/]*@")
LEFT_OUT = "(left out)"


def speed_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return those that are set, by name; a value that may be a secret is left out."""
    return {
        name: LEFT_OUT if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value) else value
        for name, value in sorted(environ.items())
        if (name.startswith(_FAMILIES) or name in _NAMES) and not name.endswith(_PLACES)
    }


def os_name() -> str:
    """Return the operating system with its version, such as `Ubuntu 24.04.1 LTS`."""
    system = platform.system()
    if system == "Darwin":
        return f"macOS {platform.mac_ver()[0]}".strip()
    if system == "Windows":
        return f"Windows {platform.release()}".strip()
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", system)
    except OSError:
        return system


def kernel_name() -> str:
    """Return the kernel's release; on Windows the build, which is what changes there."""
    return platform.version() if platform.system() == "Windows" else platform.release()


def storage(folder: Path) -> str:
    """Return the file system that `folder` lies on, or will lie on, such as `ext4`."""
    place = folder.resolve()
    holding = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if place.is_relative_to(Path(mount.mountpoint))
    ]
    if not holding:
        raise UnknownFactError(f"no mounted file system holds {place}")
    # Of two mounts on one point the later hides the earlier, hence the reversal before max.
    innermost = max(reversed(holding), key=lambda mount: len(Path(mount.mountpoint).parts))
    if not innermost.fstype:
        raise UnknownFactError(f"the file system on {innermost.mountpoint} has no name")
    return str(innermost.fstype)


def power_source(hypervisor: str | None) -> str:
    """Return `mains` or `battery`."""
    sensor = getattr(psutil, "sensors_battery", None)
    battery = sensor() if sensor else None
    if battery is not None and battery.power_plugged is not None:
        return "mains" if battery.power_plugged else "battery"
    if battery is not None:
        raise UnknownFactError("there is a battery, but the system does not show what feeds it")
    if hypervisor != "none":
        raise UnknownFactError("a virtual machine may not see its host's battery")
    return "mains"


#: Beside torch and torchvision; read from their metadata, without importing them.
_PACKAGES = ("mlflow", "numpy", "pillow", "triton")


def software_facts() -> dict[str, Any]:
    """Return `python`, `torch`, `torchvision`, `packages`, `cuda` and `cudnn`.

    NCCL is one of the packages, since torch brings it.
    """
    import torch

    packages = {name: text for name in _PACKAGES if (text := _installed(name)) is not None}
    if torch.version.cuda is not None and (nccl := value_or_none(torch.cuda.nccl.version)):
        packages["nccl"] = ".".join(map(str, nccl))
    hip = torch.version.hip and f"HIP {torch.version.hip}"  # AMD's, which torch calls cuda too

    cudnn_version: Callable[[], int | None] = torch.backends.cudnn.version

    def cudnn() -> str | Unknown:
        return str(cudnn_version() or "") or Unknown("this build of torch has no cuDNN")

    return {
        "python": platform.python_version(),
        # By its metadata too, which can be compared without importing torch; the CUDA that it was
        # built for, which torch's own version may add, is a separate fact.
        "torch": _installed("torch") or str(torch.__version__),
        "torchvision": _installed("torchvision") or "not installed",
        "packages": packages,
        "cuda": torch.version.cuda or hip or Unknown("this build of torch has no CUDA"),
        "cudnn": probe(cudnn),
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
    name, uuid = str(properties.name), str(properties.uuid)
    if torch.version.hip is not None:
        capability = str(properties.gcnArchName).partition(":")[0]  # its architecture, `gfx942`
        facts = amd_management_facts(amd_uuid(uuid), smi_opener)
    else:
        capability = f"{properties.major}.{properties.minor}"
        facts = management_facts(uuid, nvml_opener, name=name)
    return DeviceInfo(
        backend="cuda",
        name=name,
        memory_bytes=properties.total_memory,
        last_level_cache_bytes=probe(lambda: properties.L2_cache_size),
        compute_capability=capability,
        cores=properties.multi_processor_count,
        **facts,
    )


def mps_device_info() -> DeviceInfo:
    """Return the GPU of Apple silicon; `memory_bytes` is what Metal recommends to use at most."""
    import torch

    return DeviceInfo.of(
        "not asked of an Apple GPU",
        {"last_level_cache_bytes": "Apple does not publish the system cache's size"},
        backend="mps",
        name=value_or_none(cpu_model) or "Apple GPU",
        memory_bytes=probe(torch.mps.recommended_max_memory),
        cores=probe(_apple_gpu_cores),
    )


def _apple_gpu_cores() -> int:
    """Chips of one name are sold with different numbers of them."""
    cores = re.search(
        r'"gpu-core-count" = (\d+)', output_of("ioreg", "-rc", "AGXAccelerator", "-d", "1")
    )
    if cores is None:
        raise UnknownFactError("ioreg does not list gpu-core-count")
    return int(cores[1])
