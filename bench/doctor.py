"""What works on this machine, what does not, and the remedy.

Each group of checks is safe from the failure of another. torch is imported by those of devices.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bench.errors import Problem
from bench.machine import (
    UnknownFactError,
    environment,
    gpu_drivers,
    limits,
    reason_of,
    system_path,
    text_of,
    value_or_none,
)
from bench.machine.cpu import PackageEnergy
from bench.machine.repository import TREE, kit_facts
from bench.profilers.ncu.tool import (
    PERMIT,
    RefusalError,
    choose_metrics,
    counter_permission,
    find_ncu,
)
from bench.profilers.perf import find_obstacle

if TYPE_CHECKING:
    import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Diagnosis:
    """`missing`: not even a CPU can be measured without it. `warning`: something else cannot.

    `remedy` is what to do, word for word; all that is not ok has one.
    """

    name: str
    status: Literal["ok", "warning", "missing"]
    detail: str
    remedy: str | None = None


def diagnosis(name: str, state: str | Problem, *, needed: bool = False) -> Diagnosis:
    """Return the diagnosis of a part that every measurement needs, or that some do."""
    if isinstance(state, Problem):
        return Diagnosis(name, "missing" if needed else "warning", state.what, state.remedy)
    return Diagnosis(name, "ok", state)


#: A record is under 1 MB, a profile under 100 MB, a generated data set under 1 GB.
_ENOUGH_DISK_BYTES = 2e9
#: Eight loaders that keep two batches of 128 images of 224 x 224 x 3 floats ready.
_ENOUGH_SHARED_BYTES = 8 * 2 * 128 * 224 * 224 * 3 * 4
_REINSTALL = "install the default build: uv pip install --reinstall torch torchvision"


def host_checks(records: Path) -> Iterator[Diagnosis]:
    """Look at the host as far as it bears on a measurement."""
    place = records.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            free_bytes = shutil.disk_usage(place).free
        detail = f"{free_bytes / 1e9:.1f} GB free in {place}"
        too_little = Problem(detail, "free some space, or use --records FOLDER")
        yield diagnosis("records", detail if free_bytes >= _ENOUGH_DISK_BYTES else too_little)
    except OSError as error:
        what = f"cannot write in {place}: {error.strerror}"
        yield diagnosis("records", Problem(what, "use --records FOLDER"), needed=True)
    if platform.system() == "Linux":
        if system_path("dev/shm").is_dir():
            yield diagnosis("shared memory", _shared_memory(system_path("dev/shm")))
        yield diagnosis("cpu energy", _energy())
    hypervisor = value_or_none(limits.virtualization)
    yield diagnosis("surroundings", _surroundings(hypervisor))
    try:
        source = environment.power_source(hypervisor)
    except UnknownFactError as error:
        source = f"unknown: {error}"
    on_battery = Problem("on battery: clocks are held down", "plug it in")
    yield diagnosis("power", on_battery if source == "battery" else source)


def _shared_memory(place: Path) -> str | Problem:
    size_bytes = shutil.disk_usage(place).total
    detail = f"{place} holds {size_bytes / 1e9:.2f} GB"
    if size_bytes >= _ENOUGH_SHARED_BYTES:
        return detail
    return Problem(
        f"{detail}: image loaders can run out of it",
        "start the container with --shm-size=8g or --ipc=host; or use workers=0",
    )


def _energy() -> str | Problem:
    try:
        PackageEnergy()
    except UnknownFactError as error:
        if "Permission denied" in str(error):
            remedy = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
            return Problem("only root may read the counter", remedy)
        return f"{error}: CPU runs have no energy"
    return "RAPL can be read"


def _surroundings(hypervisor: str | None) -> str | Problem:
    runtime = value_or_none(limits.container) or "unknown"
    detail = f"container {runtime}, hypervisor {hypervisor or 'unknown'}"
    if hypervisor == "wsl1":
        remedy = "in Windows: wsl --set-version <distribution> 2"
        return Problem(f"{detail}: WSL 1 has no GPU", remedy)
    if hypervisor == "wsl2":
        return Problem(
            f"{detail}: the driver spills GPU memory into the host's silently, and speed falls",
            "in NVIDIA Control Panel: CUDA - Sysmem Fallback Policy > Prefer No Sysmem Fallback",
        )
    return detail


def nvidia_checks() -> Iterator[Diagnosis]:
    """Look at driver, NVML, ncu and its permission; one line where there is no NVIDIA device."""
    try:
        nvml = gpu_drivers.open_nvml()
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        names = ", ".join(map(nvml.nvmlDeviceGetName, handles))
        yield diagnosis("nvml", f"driver {nvml.nvmlSystemGetDriverVersion()}: {names}")
    except Exception as error:
        vendors = system_path("sys/bus/pci/devices").glob("*/vendor")
        if all(text_of(vendor) != "0x10de" for vendor in vendors):
            yield diagnosis("nvidia", "no NVIDIA device here: NVML and ncu are not needed")
            return
        remedy = (
            "uv pip install nvidia-ml-py, or install NVIDIA's driver, then see that nvidia-smi "
            "works; after an update of the driver reboot"
        )
        yield diagnosis("nvml", Problem(f"{error}: no GPU telemetry", remedy))
    try:
        ncu = find_ncu()
        if (device := value_or_none(gpu_drivers.compute_capability)) is not None:
            choose_metrics(ncu, device)
        yield diagnosis("ncu", f"{ncu} at {ncu.path}")
    except RefusalError as refusal:
        yield diagnosis("ncu", refusal.problem)
    is_allowed, detail = counter_permission()
    state = detail if is_allowed else Problem(detail, PERMIT)
    yield diagnosis("gpu counters", state)


def perf_checks() -> Iterator[Diagnosis]:
    """Try what a profile would do with perf; where that fails, say why. Other systems have none."""
    if platform.system() == "Linux":
        yield diagnosis("perf", find_obstacle() or "counts")


Group = Callable[[], Iterable[Diagnosis]]


def machine_groups(records: Path) -> dict[str, Group]:
    """Return the checks of this machine, by group."""
    return {
        "packages": package_checks,
        "devices": device_checks,
        "nvidia": nvidia_checks,
        "perf": perf_checks,
        "host": lambda: host_checks(records),
    }


def run_checks(groups: Mapping[str, Group]) -> list[Diagnosis]:
    """Return the diagnoses of all groups in order; a group that fails gives one that says so."""
    diagnoses: list[Diagnosis] = []
    for name, group in groups.items():
        try:
            diagnoses += list(group())
        except Exception as error:
            failure = Problem(f"the check itself failed: {reason_of(error)}", _INSTALL)
            diagnoses.append(diagnosis(name, failure, needed=True))
    return diagnoses


_INSTALL = "install the project's packages: uv pip install -r requirements.txt (or make setup)"


def package_checks(tree: Path = TREE) -> Iterator[Diagnosis]:
    """Compare Python and every direct dependency with `requires-python` and `dependencies`."""
    floor, lines = _asked_for(tree)
    version = platform.python_version()
    python: str | Problem = f"{version} ({sys.executable})"
    if not SpecifierSet(floor).contains(version, prereleases=True):
        remedy = "make the environment with a newer one: make setup PYTHON=python3.12"
        python = Problem(f"{version} does not meet {floor}", remedy)
    yield diagnosis("python", python, needed=True)
    left_out = (kit_facts(tree) or {}).get("left_out", ())
    requirements = [
        requirement
        for requirement in map(Requirement, lines)
        if requirement.name not in left_out
        and (not requirement.marker or requirement.marker.evaluate({"extra": ""}))
    ]
    faults = "; ".join(filter(None, map(_fault, requirements)))
    fine = f"all {len(requirements)} meet the project's requirements"
    yield diagnosis("packages", Problem(faults, _INSTALL) if faults else fine, needed=True)


def _asked_for(tree: Path) -> tuple[str, list[str]]:
    """From pyproject.toml, which an editable install's metadata may lag behind, or metadata."""
    if (tree / "pyproject.toml").is_file():
        project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return project["requires-python"], project["dependencies"]
    installed = importlib.metadata.distribution("mlproject")
    return installed.metadata["Requires-Python"], installed.requires or []


def _fault(requirement: Requirement) -> str | None:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name} {version} does not meet {requirement.specifier}"


def device_checks() -> Iterator[Diagnosis]:
    """Import torch and torchvision and run a step on every device they offer."""
    try:
        import torch
        import torchvision

        from bench.training.devices import missing_kernels, open_device
    except Exception as error:
        yield diagnosis("torch", Problem(reason_of(error), _REINSTALL), needed=True)
        return
    versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    yield diagnosis("cpu", _tried(torch.device("cpu"), versions), needed=True)
    native = [mode for mode in ("bf16", "fp16") if open_device("cpu").native_math(mode)]
    amp = (
        f"the processor multiplies {native[0]} itself: precision=amp is {native[0]}"
        if native
        else "the processor has no bf16 or fp16 arithmetic: precision=amp is measured in fp32 "
        "(amp-bf16 emulates bf16, slowly)"
    )
    yield diagnosis("cpu bf16", amp)
    if not torch.cuda.is_available():
        yield diagnosis("cuda", _why_no_cuda(torch.version.cuda))
    toolkit = f"CUDA {torch.version.cuda}"
    if torch.version.hip is not None:
        toolkit = f"HIP {torch.version.hip} (never tried on such a device)"
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        detail = f"{torch.cuda.get_device_name(index)}, {toolkit}"
        state = missing_kernels(index) or _tried(torch.device("cuda", index), detail)
        yield diagnosis(f"cuda:{index}", state)
    if platform.system() == "Darwin":
        state = Problem(
            "torch cannot use the Apple GPU",
            "use Apple silicon with macOS 14 or newer and a Python built for arm64",
        )
        if torch.backends.mps.is_available():
            state = _tried(torch.device("mps"), "the Apple GPU")
        yield diagnosis("mps", state)


def _tried(device: torch.device, detail: str) -> str | Problem:
    import torch

    try:
        images = torch.ones(1, 3, 8, 8, device=device)
        weights = torch.ones(4, 3, 3, 3, device=device, requires_grad=True)
        loss = torch.nn.functional.conv2d(images, weights).sum()
        (gradient,) = torch.autograd.grad(loss, weights)
        if float(gradient.sum()) != 4 * 3 * 9 * 36:  # each weight meets 6 x 6 ones
            raise ArithmeticError("a convolution gave a wrong result")
    except Exception as error:
        return Problem(f"{detail}: {reason_of(error)}", _REINSTALL)
    return detail


def _why_no_cuda(built_for: str | None) -> str | Problem:
    """No NVIDIA device is fine; one that torch cannot use is not."""
    nvml = value_or_none(gpu_drivers.open_nvml)
    devices = nvml.nvmlDeviceGetCount() if nvml else 0
    if not nvml or not devices:
        return "no NVIDIA device with a driver here"
    if built_for is None:
        return Problem("this build of torch has no CUDA", _REINSTALL)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        value = os.environ["CUDA_VISIBLE_DEVICES"]
        what = f"torch sees none of {devices} devices with CUDA_VISIBLE_DEVICES={value!r}"
        return Problem(what, "unset CUDA_VISIBLE_DEVICES")
    major, rest = divmod(int(nvml.nvmlSystemGetCudaDriverVersion()), 1000)  # 12040 is 12.4
    return Problem(
        f"torch is built for CUDA {built_for} and the driver speaks CUDA {major}.{rest // 10} "
        "at most",
        f"update the NVIDIA driver, or install a torch build for CUDA {major}",
    )
