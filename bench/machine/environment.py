"""All facts of the machine and the software for one record, and the names made of them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from bench.machine.cpu import cpu_model, cpu_signature, physical_cores, usable_cores
from bench.machine.limits import memory_bytes
from bench.machine.probes import ROOT, ProbedFacts, UnknownFactError, gather, value_or_none
from bench.machine.repository import NO_MODEL_CODE, repository_facts
from bench.machine.surroundings import METADATA_SERVER, cloud_facts, container, host, virtualization
from bench.records import DeviceInfo, Environment


def read_environment(
    device: DeviceInfo,
    records_folder: Path,
    label: str,
    code: ProbedFacts = NO_MODEL_CODE,
    root: Path = ROOT,
    metadata_server: tuple[str, int] = METADATA_SERVER,
) -> Environment:
    """Describe the machine and the software; `label` auto is made from the device's name.

    `code` is the source of the model that was trained, if any.
    What cannot be read is None with its reason: no error of a probe comes out. Takes about
    0.1 s, and up to 3 s more on a cloud whose metadata server does not answer.
    """
    virtual = gather({"virtualization": lambda: virtualization(root)})
    found = (
        virtual
        | gather(
            {
                "cpu_model": lambda: cpu_model(root),
                "cpu_signature": lambda: cpu_signature(root),
                "cpu_cores_physical": physical_cores,
                "storage": lambda: storage(records_folder),
                "container": lambda: container(root),
                "host": lambda: host(root),
                "power_source": lambda: power_source(virtual.values["virtualization"]),
            }
        )
        | software_facts()
        | repository_facts()
        | code
        | cloud_facts(root, metadata_server)
    )
    return Environment(
        label=environment_label(device) if label == "auto" else label,
        os=os_name(),
        kernel=kernel_name(),
        machine=platform.machine(),
        cpu_cores_usable=usable_cores(root),
        memory_bytes=memory_bytes(root),
        variables=speed_variables(),
        device=device,
        missing=found.missing,
        **found.values,
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
    """Return the file system that `folder` lies on, or will lie on, such as `ext4`.

    Raises `UnknownFactError` where no mount holds it.
    """
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
    """Return `mains` or `battery`. Raises `UnknownFactError` where that is unknown."""
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


def software_facts() -> ProbedFacts:
    """Return `python`, `torch`, `torchvision`, `packages`, `cuda` and `cudnn`.

    NCCL is one of the packages, since torch brings it.
    """
    import torch

    versions = gather({name: partial(_installed, name) for name in _PACKAGES})
    known = {name: found for name, found in versions.values.items() if found is not None}
    if torch.version.cuda is not None and (nccl := value_or_none(torch.cuda.nccl.version)):
        known["nccl"] = ".".join(map(str, nccl))
    always = {
        "python": platform.python_version(),
        # By its metadata too, which can be compared without importing torch; the CUDA that it was
        # built for, which torch's own version may add, is a separate fact.
        "torch": value_or_none(partial(_installed, "torch")) or str(torch.__version__),
        "torchvision": value_or_none(partial(_installed, "torchvision")) or "not installed",
        "packages": known,
    }
    hip = torch.version.hip and f"HIP {torch.version.hip}"  # AMD's, which torch calls cuda too
    cudnn_version: Callable[[], int | None] = torch.backends.cudnn.version
    libraries = {
        "cuda": lambda: _within_torch("CUDA", torch.version.cuda or hip),
        "cudnn": lambda: _within_torch("cuDNN", cudnn_version()),
    }
    return ProbedFacts(always, versions.missing) | gather(libraries)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise UnknownFactError("not installed") from None


def _within_torch(name: str, found: str | int | None) -> str:
    if found is None:
        raise UnknownFactError(f"this build of torch has no {name}")
    return str(found)
