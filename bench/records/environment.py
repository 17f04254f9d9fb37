"""The machine, the software and the device of a run, and what was sampled during it."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from operator import attrgetter

from pydantic import Field, model_validator
from typing_extensions import Self

from bench.config.resolved import Backend
from bench.records.base import NEWER, Amount, Count, Facts, Number, PositiveRate, Record, Seconds

#: Variables with which a processor computes as one without its widest instructions: oneDNN's, by
#: both of its names, and that of torch's own kernels.
_INSTRUCTION_LIMITS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")


def instruction_limits(variables: Mapping[str, str]) -> str:
    """Return those that keep a processor from its widest instructions, as a shell has them.

    "none" where there are none.
    """
    known = [name for name in _INSTRUCTION_LIMITS if name in variables]
    return " ".join(f"{name}={variables[name].lower()}" for name in known) or "none"


#: The throttle reason (NVML's name) that is no fault: the device is at the power that it may take.
POWER_LIMIT = "SwPowerCap"
#: The reason (NVML's name) that somebody chose: clocks are locked, or application clocks are set.
CLOCK_SETTING = "ApplicationsClocksSetting"


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
    pcie: str | None  # of an NVIDIA GPU, at most: "gen 5 x16"
    application_clock_mhz: PositiveRate | None = Field(NEWER)  # of an NVIDIA GPU: SM, as set


class ModelCode(Facts):
    """The source of a user's own model; two versions of it are two configurations."""

    digest: str  # twelve hex digits, equal where all sources are
    modules: tuple[str, ...]  # the model's own, and those that it imports beside installed ones
    git_commit: str | None  # of the repository that tracks the model's own file
    git_dirty: bool | None  # tracked files of it were changed

    @property
    def commit(self) -> str | None:
        """The commit for people: `3835e6312345`, `3835e6312345 changed`."""
        return self.git_commit and self.git_commit[:12] + (" changed" if self.git_dirty else "")


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
    host: str | None  # a hash that tells machines of one kind apart and says nothing else
    git_commit: str | None
    git_dirty: bool | None
    model_code: ModelCode | None
    container: str | None  # "none" when known to be none
    virtualization: str | None  # "none", "wsl2", "kvm", ...
    cloud_provider: str | None
    cloud_machine_type: str | None
    cloud_zone: str | None
    power_source: str | None  # "mains" or "battery"
    device: DeviceInfo

    @property
    def variables_set(self) -> str | None:
        """`variables` as a shell has them, or `none`; None where they were not recorded."""
        if self.variables is None:
            return None
        return " ".join(f"{name}={value}" for name, value in self.variables.items()) or "none"

    @property
    def code(self) -> str | None:
        """The digest of a user's own model's source; None where there is none."""
        return None if self.model_code is None else self.model_code.digest

    @property
    def instruction_limits(self) -> str:
        """What limited the processor's instructions; none in a record of before it was asked."""
        return instruction_limits(self.variables or {})


def environment_id(environment: Environment) -> str:
    """Return twelve hex digits, equal for runs of one machine, device, driver and torch.

    A processor that was kept from some of its instructions is another one. Machines without a
    serial number that are alike in all of this differ by their labels alone.
    """
    device = environment.device
    defining = [
        *(environment.label, environment.machine, environment.cpu_model),
        environment.cpu_signature,
        *(environment.cpu_cores_usable, environment.torch, environment.cuda, environment.cudnn),
        *(device.backend, device.name, device.uuid, device.driver),
        *([limits] if (limits := environment.instruction_limits) != "none" else []),
    ]
    return hashlib.sha256(json.dumps(defining).encode()).hexdigest()[:12]


#: The same machine reports slightly less memory after a kernel or firmware update.
_MEMORY_TOLERANCE = 0.02
#: Power limits are set in whole watts; one of 150 W reads as 149.99 or 150.0 W, by driver.
_POWER_TOLERANCE_W = 1.0


def same_device(theirs: Environment, ours: Environment) -> bool:
    """By UUID where both have one, else by name and by the machine's figures."""
    if theirs.device.backend != ours.device.backend:
        return False
    if theirs.device.uuid is not None and ours.device.uuid is not None:
        return theirs.device.uuid == ours.device.uuid
    figures = attrgetter(
        "device.name", "device.cores", "machine", "cpu_model", "cpu_signature", "cpu_cores_usable"
    )
    return figures(theirs) == figures(ours) and alike_memory(theirs.memory_bytes, ours.memory_bytes)


def alike_devices(theirs: Environment, ours: Environment) -> bool:
    """Whether both are of one kind: what trains has the same name and the same figures."""
    a, b = theirs.device, ours.device
    if a.backend == b.backend == "cpu":
        return same_device(theirs, ours)
    if a.memory_bytes is None or b.memory_bytes is None:
        alike = a.memory_bytes is b.memory_bytes
    else:
        alike = alike_memory(a.memory_bytes, b.memory_bytes)
    return alike and a.backend == b.backend and a.name == b.name


def alike_memory(a_bytes: int, b_bytes: int) -> bool:
    """Whether both may be the memory of one device or machine."""
    return abs(a_bytes - b_bytes) <= _MEMORY_TOLERANCE * max(a_bytes, b_bytes)


def same_power_limit(theirs_w: float | None, ours_w: float | None) -> bool:
    """Whether both are one limit, or neither is known."""
    if theirs_w is None or ours_w is None:
        return theirs_w is ours_w
    return abs(theirs_w - ours_w) <= _POWER_TOLERANCE_W


class ProcessFigures(Facts):
    """What `/usr/bin/time -v` reports of the worker and the loader processes it waited for."""

    real_s: Seconds
    user_s: Seconds | None
    system_s: Seconds | None
    max_rss_bytes: Count | None  # of the largest single process


class SampledSeries(Record):
    """One sampled quantity; `name` carries the unit, `times_s` count from the window's start."""

    name: str
    source: str
    times_s: tuple[Number, ...]
    values: tuple[Number, ...]

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.times_s) != len(self.values):
            raise ValueError(f"series {self.name}: times and values differ in length")
        return self


class Telemetry(Facts):
    """Series sampled by the launching process during the window, and what could not be read."""

    interval_s: PositiveRate
    series: tuple[SampledSeries, ...]
    energy_j: Number | None  # by the device's own counter over the window
    throttle_share: dict[str, float] | None  # throttle reason -> share of samples; {} means never
    slowed_share: dict[str, float] | None  # power or heat -> share of time below application clocks
    foreign_processes: tuple[str, ...] | None  # others on the device, "pid name", before or after
    #: Read and written over the window, by the devices' own counters; everybody's.
    dram_bytes: Amount | None = Field(NEWER)

    def mean(self, name: str) -> float | None:
        """Return the mean of the series `name`; None where it was not sampled."""
        values = next((series.values for series in self.series if series.name == name), ())
        return statistics.fmean(values) if values else None
