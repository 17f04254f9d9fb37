"""What the firmware says of the machine's maker: virtual machines and clouds sign there."""

from __future__ import annotations

import platform
from pathlib import Path

from bench.machine.probes import ROOT, UnknownFactError, registry_text, text_of

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
