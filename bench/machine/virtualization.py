"""Which machine this is, and what stands between this process and its hardware."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.machine.probes import ROOT, UnknownFactError, output_of, registry_text, sysctl, text_of

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
