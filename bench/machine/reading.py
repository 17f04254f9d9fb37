"""All facts of the machine and the software, for one record."""

from __future__ import annotations

import platform
from pathlib import Path

from bench.machine import host, machine
from bench.machine.cloud import METADATA_SERVER, cloud_facts
from bench.machine.cpu import cpu_model, cpu_signature, physical_cores, usable_cores
from bench.machine.label import environment_label
from bench.machine.probes import ROOT, gather
from bench.machine.repository import repository_facts
from bench.machine.software import software_facts
from bench.machine.variables import speed_variables
from bench.records import DeviceInfo, Environment


def read_environment(
    device: DeviceInfo,
    records_folder: Path,
    label: str,
    root: Path = ROOT,
    metadata_server: tuple[str, int] = METADATA_SERVER,
) -> Environment:
    """Describe the machine and the software; `label` auto is made from the device's name.

    What cannot be read is None with its reason: no error of a probe comes out. Takes about
    0.1 s, and up to 3 s more on a cloud whose metadata server does not answer.
    """
    virtual = gather({"virtualization": lambda: host.virtualization(root)})
    found = (
        virtual
        | gather(
            {
                "cpu_model": lambda: cpu_model(root),
                "cpu_signature": lambda: cpu_signature(root),
                "cpu_cores_physical": physical_cores,
                "storage": lambda: machine.storage(records_folder),
                "container": lambda: host.container(root),
                "power_source": lambda: machine.power_source(virtual.values["virtualization"]),
            }
        )
        | software_facts()
        | repository_facts()
        | cloud_facts(root, metadata_server)
    )
    return Environment(
        label=environment_label(device) if label == "auto" else label,
        os=machine.os_name(),
        kernel=machine.kernel_name(),
        machine=platform.machine(),
        cpu_cores_usable=usable_cores(root),
        memory_bytes=machine.memory_bytes(root),
        variables=speed_variables(),
        device=device,
        missing=found.missing,
        **found.values,
    )
