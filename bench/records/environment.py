"""The machine, the software and the device that a run was measured on."""

from __future__ import annotations

from typing import Literal

from bench.records.base import Backend, Count, Facts, PositiveRate, Record


class DeviceInfo(Facts):
    """The device that ran the step."""

    backend: Backend
    name: str
    uuid: str | None
    memory_bytes: Count | None
    last_level_cache_bytes: Count | None
    compute_capability: str | None
    driver: str | None
    power_limit_w: PositiveRate | None
    max_clock_mhz: PositiveRate | None
    cores: Count | None  # CPU: physical cores usable here; CUDA: multiprocessors


class Environment(Facts):
    """The machine and the software a run was measured on."""

    label: str  # `{env}` of run names
    os: str
    kernel: str
    machine: str  # x86_64, arm64
    python: str
    torch: str
    torchvision: str
    packages: dict[str, str]
    variables: dict[str, str] | None  # of the process that measured, such as OMP_PROC_BIND
    cuda: str | None
    cudnn: str | None
    cpu_model: str | None
    cpu_signature: str | None  # family, model, stepping: generations share a name on clouds
    cpu_cores_physical: Count | None
    cpu_cores_usable: Count
    memory_bytes: Count
    storage: str | None  # file system of the records folder
    git_commit: str | None
    git_dirty: bool | None
    container: str | None  # "none" when known to be none
    virtualization: str | None  # "none", "wsl2", "kvm", ...
    cloud_provider: str | None
    cloud_machine_type: str | None
    cloud_zone: str | None
    power_source: str | None  # "mains" or "battery"
    device: DeviceInfo

    @property
    def variables_set(self) -> str | None:
        """`variables` as a shell has them, or `none`; None where nobody asked."""
        if self.variables is None:
            return None
        return " ".join(f"{name}={value}" for name, value in self.variables.items()) or "none"


class Machine(Record):
    """Every device of a machine: a worker's account of where it found itself."""

    kind: Literal["machine"] = "machine"
    environments: tuple[Environment, ...]  # what `auto` takes comes first
