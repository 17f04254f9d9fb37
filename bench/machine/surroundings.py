"""What the machine runs in: a hypervisor, a container, a cloud."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

from bench.errors import Unknown, one_line
from bench.machine.probes import (
    ROOT,
    UnknownFactError,
    output_of,
    probe,
    registry_text,
    sysctl,
    text_of,
    value_or_none,
)

#: DMI fields by the kernel's names, with those of Windows's registry.
_DMI = {
    "sys_vendor": "SystemManufacturer",
    "product_name": "SystemProductName",
    "chassis_asset_tag": "",
}


def read_dmi(root: Path = ROOT) -> dict[str, str]:
    """Return the DMI fields that can be read, by the kernel's names; none on macOS."""
    if platform.system() == "Windows":
        key = r"HARDWARE\DESCRIPTION\System\BIOS"
        texts = {field: probe(registry_text, key, name) for field, name in _DMI.items()}
    else:
        texts = {field: probe(text_of, root / "sys/class/dmi/id" / field) for field in _DMI}
    return {field: text for field, text in texts.items() if not isinstance(text, Unknown)}


#: What container runtimes leave in their containers; the orchestrator comes first.
_CONTAINERS = {
    "kubernetes": "var/run/secrets/kubernetes.io",
    "podman": "run/.containerenv",
    "docker": ".dockerenv",
    "apptainer": ".singularity.d",
}


def container(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return the container runtime around this process, with its image if known, or `none`.

    Nothing inside a container knows its image; `MLPROJECT_IMAGE` names it, as in ours.
    """
    system = platform.system()
    if system == "Windows":
        raise UnknownFactError("not looked for on Windows")
    if system == "Darwin":
        return "none"
    if "KUBERNETES_SERVICE_HOST" in environ:
        runtime = "kubernetes"
    else:
        traces = (name for name, path in _CONTAINERS.items() if (root / path).exists())
        # systemd notes the others, such as lxc
        noted = value_or_none(lambda: text_of(root / "run/systemd/container"))
        runtime = next(traces, noted or "none")
    image = environ.get("MLPROJECT_IMAGE")
    return f"{runtime} ({image})" if image and runtime != "none" else runtime


#: Words in the vendor and product names; systemd's dmi_vendor_table (src/basic/virt.c) has them.
_HYPERVISORS = {
    "Virtual Machine": "hyperv",
    "VMware": "vmware",
    "VirtualBox": "virtualbox",
    "Xen": "xen",
    "Google Compute Engine": "kvm",
    "Amazon EC2": "kvm",
    "KVM": "kvm",
    "QEMU": "qemu",
}


def virtualization(root: Path = ROOT) -> str:
    """Return the hypervisor under this system (`wsl1`, `wsl2`, `kvm`, `hyperv`...), or `none`.

    `unidentified` where the processor shows a hypervisor without a name.
    """
    if platform.system() == "Darwin":
        return "unidentified" if sysctl("kern.hv_vmm_present") == "1" else "none"
    fields = read_dmi(root)
    names = f"{fields.get('sys_vendor', '')} {fields.get('product_name', '')}"
    word = next((word for sign, word in _HYPERVISORS.items() if sign in names), None)
    if names.endswith(".metal"):  # Amazon's machines without a hypervisor
        word = "none"
    if platform.system() == "Windows":
        return word or "none"
    # Microsoft's kernels: 4.4.0-19041-Microsoft and 5.15.90.1-microsoft-standard-WSL2.
    release = text_of(root / "proc/sys/kernel/osrelease").lower()
    if "microsoft" in release:
        return "wsl2" if "wsl2" in release else "wsl1"
    processor = text_of(root / "proc/cpuinfo").split()
    if word or "hypervisor" in processor:
        return word or "unidentified"
    if fields or "flags" in processor:  # Arm's processors do not say
        return "none"
    raise UnknownFactError("neither the processor nor the firmware shows a hypervisor")


def host(root: Path = ROOT) -> str:
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
    elif (runtime := container(root)) != "none":
        raise UnknownFactError(f"{runtime} does not show which machine it is on")
    else:
        name = f"{platform.node()} {text_of(root / 'etc/machine-id')}"
    return hashlib.sha256(name.encode()).hexdigest()[:12]


#: The address that these clouds use; a number, so that no name server is asked.
METADATA_SERVER = ("169.254.169.254", 80)
_TIMEOUT_S = 1.0

Ask = Callable[..., str]


def cloud_facts(
    root: Path = ROOT, server: tuple[str, int] = METADATA_SERVER
) -> dict[str, str | Unknown]:
    """Return `cloud_provider`, `cloud_machine_type` and `cloud_zone`, asking at most 3 s."""
    provider = probe(_provider, root)
    where: tuple[str | Unknown, str | Unknown] = (Unknown("no cloud provider is known"),) * 2
    if provider:
        facts = probe(_CLOUDS[provider][2], partial(_request, server))
        where = (facts, facts) if isinstance(facts, Unknown) else facts
    names = ("cloud_provider", "cloud_machine_type", "cloud_zone")
    return dict(zip(names, (provider, *where), strict=True))


def _provider(root: Path) -> str:
    fields = read_dmi(root)
    for provider, (field, mark, _) in _CLOUDS.items():
        if fields.get(field) == mark:
            return provider
    maker = " ".join(fields.get(name, "") for name in ("sys_vendor", "product_name")).strip()
    raise UnknownFactError(f"the firmware's maker, {maker or 'not named'}, is no cloud known here")


def _gcp(ask: Ask) -> tuple[str, str]:
    """cloud.google.com/compute/docs/metadata/predefined-metadata-keys."""
    path, headers = "/computeMetadata/v1/instance", {"Metadata-Flavor": "Google"}
    machine_type, zone = (ask(f"{path}/{key}", headers) for key in ("machine-type", "zone"))
    return machine_type.rpartition("/")[2], zone.rpartition("/")[2]  # projects/1/zones/us-a


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
        zone = "-".join(filter(None, (compute["location"], compute["zone"])))
        return compute["vmSize"], zone
    except (ValueError, KeyError, TypeError) as error:
        raise UnknownFactError(f"the metadata server's answer is not understood: {error}") from None


#: Provider: DMI field, its text (cloud-init's tools/ds-identify has these), and how it is asked.
_CLOUDS: dict[str, tuple[str, str, Callable[[Ask], tuple[str, str]]]] = {
    "gcp": ("product_name", "Google Compute Engine", _gcp),
    "aws": ("sys_vendor", "Amazon EC2", _aws),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", _azure),
}


def _request(
    server: tuple[str, int], path: str, headers: dict[str, str], method: str = "GET"
) -> str:
    """One request, straight to the server: a proxy's answer would describe the proxy's machine."""
    url = "http://{}:{}".format(*server) + path
    request = Request(url, headers=headers, method=method)  # noqa: S310 - no other scheme
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=_TIMEOUT_S) as response:
            body = str(response.read().decode(errors="replace")).strip()
    except (OSError, HTTPException) as error:
        raise UnknownFactError(f"no answer of the metadata server: {one_line(error)}") from None
    if not body:
        raise UnknownFactError(f"the metadata server has nothing at {path}")
    return body
