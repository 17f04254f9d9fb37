"""The devices that torch can compute on, each tried with one small convolution."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.doctor.check import Check, Status, ok
from bench.machine.nvml import open_nvml
from bench.machine.probes import UnknownFactError, reason_of

if TYPE_CHECKING:
    import torch

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
    yield _native_bf16()
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


def _native_bf16() -> Check:
    from bench.training.devices import open_device

    if open_device("cpu").native_math("bf16"):
        return ok("cpu bf16", "the processor multiplies bf16 itself: precision=amp is fast")
    return Check(
        "cpu bf16",
        "warning",
        "the processor has no bf16 instructions: precision=amp is emulated and slow on the CPU",
        "use precision=fp32 on this CPU",
    )


def _cuda_checks() -> Iterator[Check]:
    import torch

    if not torch.cuda.is_available():
        yield _why_no_cuda(torch.version.cuda)
        return
    for index in range(torch.cuda.device_count()):
        detail = f"{torch.cuda.get_device_name(index)}, CUDA {torch.version.cuda}"
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
