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

from bench.doctor import Check, Status, check
from bench.errors import Problem
from bench.machine.probes import open_nvml, reason_of, value_or_none
from bench.machine.repository import TREE, kit_facts

if TYPE_CHECKING:
    import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_INSTALL = "install them: uv pip install -r requirements.txt (or run make setup)"
_REINSTALL = "install the default build: uv pip install --reinstall torch torchvision"


def package_checks(tree: Path = TREE) -> Iterator[Check]:
    """Compare Python and every direct dependency with `requires-python` and `dependencies`."""
    floor, lines = _asked_for(tree)
    version = platform.python_version()
    found: str | Problem = f"{version} ({sys.executable})"
    if not SpecifierSet(floor).contains(version, prereleases=True):
        remedy = "make the environment with a newer one: make setup PYTHON=python3.12"
        found = Problem(f"{version} does not meet {floor}", remedy)
    yield check("python", found, "missing")
    left_out = (kit_facts(tree) or {}).get("left_out", ())
    requirements = [
        one
        for one in map(Requirement, lines)
        if one.name not in left_out and (not one.marker or one.marker.evaluate({"extra": ""}))
    ]
    faults = "; ".join(filter(None, map(_fault, requirements)))
    fine = f"all {len(requirements)} meet the project's requirements"
    yield check("packages", Problem(faults, _INSTALL) if faults else fine, "missing")


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


def device_checks() -> Iterator[Check]:
    """Import torch and torchvision and run a step on every device they offer."""
    try:
        import torch
        import torchvision
    except Exception as error:
        yield check("torch", Problem(reason_of(error), _REINSTALL), "missing")
        return
    versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    yield _tried("cpu", torch.device("cpu"), versions, "missing")
    yield check("cpu bf16", _amp())
    yield from _cuda_checks()
    if platform.system() == "Darwin":
        if torch.backends.mps.is_available():
            yield _tried("mps", torch.device("mps"), "the Apple GPU")
        else:
            remedy = "use Apple silicon with macOS 14 or newer and a Python built for arm64"
            yield check("mps", Problem("torch cannot use the Apple GPU", remedy))


def _tried(name: str, device: torch.device, detail: str, failure: Status = "warning") -> Check:
    import torch

    try:
        images = torch.ones(1, 3, 8, 8, device=device)
        weights = torch.ones(4, 3, 3, 3, device=device, requires_grad=True)
        loss = torch.nn.functional.conv2d(images, weights).sum()
        (gradient,) = torch.autograd.grad(loss, weights)
        if float(gradient.sum()) != 4 * 3 * 9 * 36:  # each weight meets 6 x 6 ones
            raise ArithmeticError("a convolution gave a wrong result")
    except Exception as error:
        return check(name, Problem(f"{detail}: {reason_of(error)}", _REINSTALL), failure)
    return check(name, detail)


def _amp() -> str:
    from bench.training.devices import open_device

    for mode in ("bf16", "fp16"):
        if open_device("cpu").native_math(mode):
            return f"the processor multiplies {mode} itself: precision=amp is {mode}"
    return (
        "the processor has no bf16 or fp16 arithmetic: precision=amp is measured in fp32 "
        "(amp-bf16 emulates bf16, slowly)"
    )


def _cuda_checks() -> Iterator[Check]:
    import torch

    from bench.training.devices import missing_kernels

    if not torch.cuda.is_available():
        yield check("cuda", _why_no_cuda(torch.version.cuda))
        return
    toolkit = f"CUDA {torch.version.cuda}"
    if torch.version.hip is not None:
        toolkit = f"HIP {torch.version.hip} (never tried on such a device)"
    for index in range(torch.cuda.device_count()):
        if problem := missing_kernels(index):
            yield check(f"cuda:{index}", problem)
        else:
            detail = f"{torch.cuda.get_device_name(index)}, {toolkit}"
            yield _tried(f"cuda:{index}", torch.device("cuda", index), detail)


def _why_no_cuda(built_for: str | None) -> str | Problem:
    """No NVIDIA device is fine; one that torch cannot use is not."""
    nvml = value_or_none(open_nvml)
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
