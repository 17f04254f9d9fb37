"""What is installed: Python and the packages, and every device tried with one small convolution."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bench.doctor import Check, Status, ok
from bench.machine.probes import UnknownFactError, open_nvml, reason_of
from bench.machine.repository import TREE, kit_facts

if TYPE_CHECKING:
    import torch


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_INSTALL = "install them: uv pip install -r requirements.txt (or run make setup)"


def package_checks(tree: Path = TREE) -> Iterator[Check]:
    """Compare Python and every direct dependency with `requires-python` and `dependencies`."""
    python_floor, requirements = _asked_for(tree)
    version = platform.python_version()
    if SpecifierSet(python_floor).contains(version, prereleases=True):
        yield ok("python", f"{version} ({sys.executable})")
    else:
        yield Check(
            "python",
            "missing",
            f"{version} does not meet {python_floor}",
            "make the environment with a newer one: make setup PYTHON=python3.12",
        )
    faults = [fault for requirement in requirements if (fault := _fault(requirement))]
    if faults:
        yield Check("packages", "missing", "; ".join(faults), _INSTALL)
    else:
        yield ok("packages", f"all {len(requirements)} meet the project's requirements")


def _asked_for(tree: Path) -> tuple[str, list[Requirement]]:
    """From pyproject.toml, which an editable install's metadata may lag behind, or metadata."""
    pyproject = tree / "pyproject.toml"
    if pyproject.is_file():
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        python_floor, lines = project["requires-python"], project["dependencies"]
    else:
        distribution = importlib.metadata.distribution("mlproject")
        python_floor = distribution.metadata["Requires-Python"]
        lines = [line for line in distribution.requires or () if "extra ==" not in line]
    left_out = (kit_facts(tree) or {}).get("left_out", ())
    asked_for = [Requirement(line) for line in lines]
    requirements = [one for one in asked_for if one.name not in left_out]
    return python_floor, [one for one in requirements if not one.marker or one.marker.evaluate()]


def _fault(requirement: Requirement) -> str | None:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name} {version} does not meet {requirement.specifier}"


_REINSTALL = "install the default build: uv pip install --reinstall torch torchvision"


def device_checks() -> Iterator[Check]:
    """Import torch and torchvision and run a step on every device they offer."""
    try:
        import torch
        import torchvision
    except Exception as error:
        yield Check("torch", "missing", reason_of(error), _REINSTALL)
        return
    versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    yield _tried("cpu", torch.device("cpu"), versions, "missing")
    yield _amp_check()
    yield from _cuda_checks()
    if platform.system() == "Darwin":
        yield _mps_check()


def _tried(name: str, device: torch.device, detail: str, failure: Status) -> Check:
    """Convolve forward and backward once, and wait for it."""
    import torch

    try:
        images = torch.ones(1, 3, 8, 8, device=device)
        weights = torch.ones(4, 3, 3, 3, device=device, requires_grad=True)
        loss = torch.nn.functional.conv2d(images, weights).sum()
        (gradient,) = torch.autograd.grad(loss, weights)
        if float(gradient.sum()) != 4 * 3 * 9 * 36:  # each weight meets 6 x 6 ones
            raise ArithmeticError("a convolution gave a wrong result")
    except Exception as error:
        return Check(name, failure, f"{detail}: {reason_of(error)}", _REINSTALL)
    return ok(name, detail)


def _amp_check() -> Check:
    from bench.training.devices import open_device

    cpu = open_device("cpu")
    native = next((mode for mode in ("bf16", "fp16") if cpu.native_math(mode)), None)
    if native is not None:
        return ok(
            "cpu bf16", f"the processor multiplies {native} itself: precision=amp is {native}"
        )
    return ok(
        "cpu bf16",
        "the processor has no bf16 or fp16 arithmetic: precision=amp is measured in fp32 "
        "(amp-bf16 emulates bf16, slowly)",
    )


def _cuda_checks() -> Iterator[Check]:
    import torch

    from bench.training.devices.cuda import missing_kernels

    if not torch.cuda.is_available():
        yield _why_no_cuda(torch.version.cuda)
        return
    for index in range(torch.cuda.device_count()):
        toolkit = f"CUDA {torch.version.cuda}"
        if torch.version.hip is not None:
            toolkit = f"HIP {torch.version.hip} (never tried on such a device)"
        detail = f"{torch.cuda.get_device_name(index)}, {toolkit}"
        if lacking := missing_kernels(index):
            what, _, remedy = lacking.partition("; ")
            yield Check(f"cuda:{index}", "warning", what, remedy)
        else:
            yield _tried(f"cuda:{index}", torch.device("cuda", index), detail, "warning")


def _why_no_cuda(built_for: str | None) -> Check:
    """No NVIDIA device is fine; one that torch cannot use is not."""
    try:
        nvml = open_nvml()
        devices = int(nvml.nvmlDeviceGetCount())
    except UnknownFactError:
        devices = 0
    if not devices:
        return ok("cuda", "no NVIDIA device with a driver here")
    if built_for is None:
        return Check("cuda", "warning", "this build of torch has no CUDA", _REINSTALL)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        value = os.environ["CUDA_VISIBLE_DEVICES"]
        detail = f"torch sees none of {devices} devices with CUDA_VISIBLE_DEVICES={value!r}"
        return Check("cuda", "warning", detail, "unset CUDA_VISIBLE_DEVICES")
    version = int(nvml.nvmlSystemGetCudaDriverVersion())  # 12040 is 12.4
    speaks = f"{version // 1000}.{version % 1000 // 10}"
    major = version // 1000
    return Check(
        "cuda",
        "warning",
        f"torch is built for CUDA {built_for} and the driver speaks CUDA {speaks} at most",
        f"update the NVIDIA driver, or install a torch build for CUDA {major}",
    )


def _mps_check() -> Check:
    import torch

    if torch.backends.mps.is_available():
        return _tried("mps", torch.device("mps"), "the Apple GPU", "warning")
    return Check(
        "mps",
        "warning",
        "torch cannot use the Apple GPU",
        "use Apple silicon with macOS 14 or newer and a Python built for arm64",
    )
