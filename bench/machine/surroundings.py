"""What the machine runs in: a hypervisor, a container, a cloud."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench.machine.probes import (
    ROOT,
    ProbedFacts,
    UnknownFactError,
    absent,
    gather,
    output_of,
    registry_text,
    sysctl,
    text_of,
    value_or_none,
)

_FIELDS = ("sys_vendor", "product_name", "bios_vendor", "bios_version", "chassis_asset_tag")
_BIOS_KEY = r"HARDWARE\DESCRIPTION\System\BIOS"
_REGISTRY = {
    "sys_vendor": "SystemManufacturer",
    "product_name": "SystemProductName",
    "bios_vendor": "BIOSVendor",
    "bios_version": "BIOSVersion",
}


def read_dmi(root: Path = ROOT) -> dict[str, str]:
    """Return the DMI fields that can be read, by the kernel's names; none on macOS."""
    fields = {}
    for field in _FIELDS:
        try:
            if platform.system() == "Windows":
                fields[field] = registry_text(_BIOS_KEY, _REGISTRY.get(field, field))
            else:
                fields[field] = text_of(root / "sys/class/dmi/id" / field)
        except UnknownFactError:
            continue
    return fields


#: Files that runtimes leave in their containers; the orchestrator's come first.
_CONTAINER_FILES = {
    "var/run/secrets/kubernetes.io": "kubernetes",
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
    ".singularity.d": "apptainer",
}
#: Parts of the control group's path, for runtimes that leave no file (containerd, LXC).
_CONTAINER_GROUPS = {
    "kubepods": "kubernetes",
    "docker": "docker",
    "libpod": "podman",
    "containerd": "containerd",
    "lxc": "lxc",
}
#: Words in the vendor and product names; systemd's dmi_vendor_table (src/basic/virt.c) has them.
_DMI_WORDS = {
    "Virtual Machine": "hyperv",
    "VMware": "vmware",
    "VirtualBox": "virtualbox",
    "innotek": "virtualbox",
    "Parallels": "parallels",
    "Xen": "xen",
    "Google Compute Engine": "kvm",
    "Amazon EC2": "kvm",
    "KVM": "kvm",
    "QEMU": "qemu",
}
#: systemd-detect-virt's words that differ from ours.
_SYSTEMD_WORDS = {"microsoft": "hyperv", "oracle": "virtualbox", "amazon": "kvm", "google": "kvm"}


def container(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return the container runtime around this process, with its image if known, or `none`.

    Nothing inside a container knows its image; `MLPROJECT_IMAGE` names it, as in ours. Raises
    `UnknownFactError` on Windows, whose containers leave no sign that we know.
    """
    system = platform.system()
    if system == "Windows":
        raise UnknownFactError("not looked for on Windows")
    if system == "Darwin":
        return "none"
    runtime = _container_runtime(root, environ)
    image = environ.get("MLPROJECT_IMAGE")
    return f"{runtime} ({image})" if image and runtime != "none" else runtime


def _container_runtime(root: Path, environ: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    for file, runtime in _CONTAINER_FILES.items():
        if (root / file).exists():
            return runtime
    groups = text_of(root / "proc/self/cgroup")
    return next((name for word, name in _CONTAINER_GROUPS.items() if word in groups), "none")


def virtualization(root: Path = ROOT) -> str:
    """Return the hypervisor under this system (`wsl1`, `wsl2`, `kvm`, `hyperv`...), or `none`.

    `unidentified` where the processor shows a hypervisor without a name. Raises
    `UnknownFactError` where that is unknown.
    """
    system = platform.system()
    if system == "Darwin":
        return "unidentified" if sysctl("kern.hv_vmm_present") == "1" else "none"
    if system == "Windows":
        return _from_dmi(root) or "none"
    return _wsl(root) or _from_systemd(root) or _from_dmi(root) or _from_processor(root)


def _wsl(root: Path) -> str | None:
    """Microsoft's kernels: 4.4.0-19041-Microsoft and 5.15.90.1-microsoft-standard-WSL2."""
    release = text_of(root / "proc/sys/kernel/osrelease").lower()
    if "microsoft" not in release:
        return None
    return "wsl2" if "standard" in release or "wsl2" in release else "wsl1"


def _from_systemd(root: Path) -> str | None:
    program = shutil.which("systemd-detect-virt", path=str(root / "usr/bin"))
    if program is None:
        return None
    try:
        word = output_of(program, "--vm", accepted_codes=(0, 1))  # 1: it found none
    except UnknownFactError:
        return None
    return _SYSTEMD_WORDS.get(word, word) or None


def _from_dmi(root: Path) -> str | None:
    fields = read_dmi(root)
    names = f"{fields.get('sys_vendor', '')} {fields.get('product_name', '')}"
    if names.endswith(".metal"):  # Amazon's machines without a hypervisor
        return "none"
    return next((name for word, name in _DMI_WORDS.items() if word in names), None)


def _from_processor(root: Path) -> str:
    for line in text_of(root / "proc/cpuinfo").splitlines():
        if line.startswith("flags"):
            return "unidentified" if "hypervisor" in line.split() else "none"
    if read_dmi(root):
        return "none"
    raise UnknownFactError("neither the processor nor the firmware shows a hypervisor")


def host(root: Path = ROOT) -> str:
    """Return twelve hex digits that differ between machines and say nothing else of this one.

    Made of what the system calls itself: on Linux the machine id with the host's name, since copies
    of one disk share the id. Raises `UnknownFactError` in a container, which has an id of its own.
    """
    system = platform.system()
    if system == "Darwin":
        name = _apple_serial(output_of("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"))
    elif system == "Windows":
        name = registry_text(r"SOFTWARE\Microsoft\Cryptography", "MachineGuid")
    elif (runtime := container(root)) != "none":
        raise UnknownFactError(f"{runtime} does not show which machine it is on")
    else:
        name = f"{platform.node()} {text_of(root / 'etc/machine-id')}"
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _apple_serial(listing: str) -> str:
    for line in listing.splitlines():
        if "IOPlatformUUID" in line:
            return line.rpartition("= ")[2].strip('" ')
    raise UnknownFactError("ioreg names no IOPlatformUUID")


#: Provider, DMI field and its text: cloud-init's tools/ds-identify has these marks.
_MARKS = (
    ("gcp", "product_name", "Google Compute Engine"),
    ("aws", "sys_vendor", "Amazon EC2"),
    ("azure", "chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    ("oracle", "chassis_asset_tag", "OracleCloud.com"),
    ("alibaba", "product_name", "Alibaba Cloud ECS"),
    ("digitalocean", "sys_vendor", "DigitalOcean"),
    ("hetzner", "sys_vendor", "Hetzner"),
    ("scaleway", "sys_vendor", "Scaleway"),
    ("vultr", "sys_vendor", "Vultr"),
)
#: The address that all three use; a number, so that no name server is asked.
METADATA_SERVER = ("169.254.169.254", 80)
_TIMEOUT_S = 1.0

Ask = Callable[..., str]


def cloud_facts(root: Path = ROOT, server: tuple[str, int] = METADATA_SERVER) -> ProbedFacts:
    """Return `cloud_provider`, `cloud_machine_type` and `cloud_zone`, asking at most 3 s."""
    found = gather({"cloud_provider": lambda: _provider(root)})
    provider = found.values["cloud_provider"]
    names = ("cloud_machine_type", "cloud_zone")
    if provider not in _METADATA:
        reason = f"not asked for on {provider}" if provider else "no cloud provider is known"
        return found | absent(dict.fromkeys(names, reason))

    try:
        answers = _METADATA[provider](partial(_request, server))
        return found | ProbedFacts(dict(zip(names, answers, strict=True)), {})
    except UnknownFactError as error:
        return found | absent(dict.fromkeys(names, str(error)))


def _provider(root: Path) -> str:
    fields = read_dmi(root)
    for provider, field, mark in _MARKS:
        if fields.get(field) == mark:
            return provider
    xen_uuid = value_or_none(lambda: text_of(root / "sys/hypervisor/uuid"))
    if xen_uuid and xen_uuid.startswith("ec2"):  # Amazon's machines of the Xen age
        return "aws"
    maker = " ".join(fields.get(name, "") for name in ("sys_vendor", "product_name")).strip()
    raise UnknownFactError(
        f"the firmware's maker, {maker}, is no cloud known here"
        if maker
        else "the firmware names no maker"
    )


def _gcp(ask: Ask) -> tuple[str, str]:
    """cloud.google.com/compute/docs/metadata/predefined-metadata-keys."""
    headers = {"Metadata-Flavor": "Google"}
    values = (
        ask(f"/computeMetadata/v1/instance/{key}", headers) for key in ("machine-type", "zone")
    )
    machine_type, zone = (value.rpartition("/")[2] for value in values)  # projects/1/zones/us-a
    return machine_type, zone


def _aws(ask: Ask) -> tuple[str, str]:
    """docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html."""
    token = ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    headers = {"X-aws-ec2-metadata-token": token}
    machine_type = ask("/latest/meta-data/instance-type", headers)
    return machine_type, ask("/latest/meta-data/placement/availability-zone", headers)


def _azure(ask: Ask) -> tuple[str, str]:
    """learn.microsoft.com/azure/virtual-machines/instance-metadata-service."""
    answer = ask("/metadata/instance/compute?api-version=2021-02-01", {"Metadata": "true"})
    try:
        compute = json.loads(answer)
        zone = (
            f"{compute['location']}-{compute['zone']}" if compute["zone"] else compute["location"]
        )
        return compute["vmSize"], zone
    except (ValueError, KeyError, TypeError) as error:
        raise UnknownFactError(f"the metadata server's answer is not understood: {error}") from None


_METADATA: dict[str, Callable[[Ask], tuple[str, str]]] = {"gcp": _gcp, "aws": _aws, "azure": _azure}


def _request(
    server: tuple[str, int], path: str, headers: Mapping[str, str], method: str = "GET"
) -> str:
    """One request, straight to the server: a proxy's answer would describe the proxy's machine."""
    connection = http.client.HTTPConnection(*server, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, headers=dict(headers))
        response = connection.getresponse()
        body = response.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise UnknownFactError(f"the metadata server does not answer: {reason}") from None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK or not body:
        raise UnknownFactError(f"the metadata server answers {response.status} to {path}")
    return body
