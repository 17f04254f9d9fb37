"""All facts of the machine and the software for one record, and names made of them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import psutil

from bench.errors import Unknown
from bench.machine import (
    UnknownFactError,
    output_of,
    probe,
    registry_text,
    text_of,
    value_or_none,
)
from bench.machine.cpu import cpu_model, cpu_signature, physical_cores, usable_cores
from bench.machine.limits import container, memory_bytes, virtualization
from bench.machine.repository import NO_MODEL_CODE, repository_facts
from bench.records import DeviceInfo, Environment, ModelCode


def read_environment(
    device: DeviceInfo,
    records_folder: Path,
    label: str,
    code: ModelCode | Unknown = NO_MODEL_CODE,
) -> Environment:
    """Describe the machine and the software; `label` auto is made from the device's name.

    `code` is the source of the model that was trained, if any.
    What cannot be read is None with its reason: no error of a probe comes out. Takes about
    0.1 s, and up to 3 s more on a cloud whose metadata server does not answer.
    """
    hypervisor = probe(virtualization)
    return Environment(
        label=environment_label(device) if label == "auto" else label,
        os=os_name(),
        kernel=kernel_name(),
        machine=platform.machine(),
        cpu_cores_usable=usable_cores(),
        memory_bytes=memory_bytes(),
        variables=speed_variables(),
        device=device,
        virtualization=hypervisor,
        cpu_model=probe(cpu_model),
        cpu_signature=probe(cpu_signature),
        cpu_cores_physical=probe(physical_cores),
        storage=probe(storage, records_folder),
        container=probe(container),
        host=probe(host),
        power_source=probe(power_source, hypervisor or None),
        model_code=code,
        **software_facts(),
        **repository_facts(),
        **cloud_facts(),
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


#: How variables begin of OpenMP of GCC and LLVM, oneMKL, oneDNN, OpenBLAS, cuBLAS, cuDNN, NCCL,
#: CUDA's launches, torch's switches and allocators, its compiler, and AMD's libraries. `allocator`
#: says where a step's memory comes from, so glibc's variables are not here.
_OF_SPEED = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "ATEN_CPU_CAPABILITY"),
    *("CUBLAS_", "CUDNN_", "NCCL_", "CUDA_DEVICE_MAX", "CUDA_LAUNCH_", "CUDA_MODULE_LOADING"),
    *("NVIDIA_TF32_OVERRIDE", "THP_MEM_ALLOC_ENABLE", "TORCH_ALLOW_TF32_", "TORCH_BLAS_"),
    *("TORCH_COMPILE_DISABLE", "TORCH_CUDNN_", "TORCH_NCCL_", "TORCHINDUCTOR_", "TORCHDYNAMO_"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ENABLE_MPS_FALLBACK", "TRITON_"),
    *("PYTORCH_MIOPEN_", "PYTORCH_NO_CUDA_MEMORY_CACHING", "MIOPEN_", "ROCBLAS_", "HIPBLASLT_"),
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
        if name.startswith(_OF_SPEED) and not name.endswith(_PLACES)
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

    versions = {name: _installed(name) for name in _PACKAGES}
    packages = {name: text for name, text in versions.items() if text is not None}
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
    return value_or_none(partial(version, package))


def host() -> str:
    """Return twelve hex digits that differ between machines and say nothing else of this one.

    Made of what the system calls itself: on Linux the machine id with the host's name, since copies
    of one disk share the id.
    """
    system = platform.system()
    if system == "Darwin":
        listing = output_of("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice")
        _, mark, rest = listing.partition('"IOPlatformUUID" = "')
        if not mark:
            raise UnknownFactError("ioreg names no IOPlatformUUID")
        name = rest.partition('"')[0]
    elif system == "Windows":
        name = registry_text(r"SOFTWARE\Microsoft\Cryptography", "MachineGuid")
    elif (runtime := container()) != "none":
        raise UnknownFactError(f"{runtime} does not show which machine it is on")
    else:
        name = f"{platform.node()} {text_of('etc/machine-id')}"
    return hashlib.sha256(name.encode()).hexdigest()[:12]


#: Where clouds tell a machine what it is; a number, so that no name server is asked.
METADATA_URL = "http://169.254.169.254"
_TIMEOUT_S = 1.0


def cloud_facts() -> dict[str, str | Unknown]:
    """Return `cloud_provider`, `cloud_machine_type` and `cloud_zone`, asking at most 3 s."""
    provider = probe(_provider)
    where = probe(_CLOUDS[provider][2]) if provider else Unknown("no cloud provider is known")
    machine_type, zone = (where, where) if isinstance(where, Unknown) else where
    return {"cloud_provider": provider, "cloud_machine_type": machine_type, "cloud_zone": zone}


def _provider() -> str:
    fields = ("sys_vendor", "product_name", "chassis_asset_tag")
    firmware = {name: probe(text_of, f"sys/class/dmi/id/{name}") or "" for name in fields}
    for provider, (field, mark, _) in _CLOUDS.items():
        if firmware[field] == mark:
            return provider
    maker = " ".join(filter(None, list(firmware.values())[:2])) or "not named"
    raise UnknownFactError(f"the firmware's maker, {maker}, is no cloud known here")


def _gcp() -> tuple[str, str]:
    """cloud.google.com/compute/docs/metadata/predefined-metadata-keys."""
    path, headers = "/computeMetadata/v1/instance", {"Metadata-Flavor": "Google"}
    machine_type, zone = (_told(f"{path}/{key}", headers) for key in ("machine-type", "zone"))
    return machine_type.rpartition("/")[2], zone.rpartition("/")[2]  # projects/1/zones/us-a


def _aws() -> tuple[str, str]:
    """docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html."""
    token = _told("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    headers = {"X-aws-ec2-metadata-token": token}
    machine_type = _told("/latest/meta-data/instance-type", headers)
    return machine_type, _told("/latest/meta-data/placement/availability-zone", headers)


def _azure() -> tuple[str, str]:
    """learn.microsoft.com/azure/virtual-machines/instance-metadata-service."""
    answer = _told("/metadata/instance/compute?api-version=2021-02-01", {"Metadata": "true"})
    compute = json.loads(answer)
    return compute["vmSize"], "-".join(filter(None, (compute["location"], compute["zone"])))


#: Provider: DMI field, its text (cloud-init's tools/ds-identify has these), and how it is asked.
_CLOUDS: dict[str, tuple[str, str, Callable[[], tuple[str, str]]]] = {
    "gcp": ("product_name", "Google Compute Engine", _gcp),
    "aws": ("sys_vendor", "Amazon EC2", _aws),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", _azure),
}


def _told(path: str, headers: dict[str, str], method: str = "GET") -> str:
    """One answer, straight from the server: a proxy's would describe the proxy's machine."""
    url = f"{METADATA_URL}{path}"
    request = Request(url, headers=headers, method=method)  # noqa: S310 - no other scheme
    with build_opener(ProxyHandler({})).open(request, timeout=_TIMEOUT_S) as response:
        return str(response.read().decode(errors="replace")).strip()
