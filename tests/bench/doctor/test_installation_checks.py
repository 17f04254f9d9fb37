import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from bench.doctor import device_checks, package_checks
from bench.machine import UnknownFactError

PROJECT = """[project]
requires-python = "{python}"
dependencies = [{dependencies}]
"""


def checks_of(tmp_path, *dependencies, python=">=3.10"):
    text = PROJECT.format(python=python, dependencies=str(dependencies).strip("(,)"))
    (tmp_path / "pyproject.toml").write_text(text)
    return {check.name: check for check in package_checks(tmp_path)}


def test_what_is_absent_or_too_old_is_named_with_the_remedy(tmp_path):
    assert {check.status for check in package_checks()} == {"ok"}  # of the project's own
    found = checks_of(tmp_path, "psutil>=9999", "no-such-package-anywhere", "pydantic>=2")
    assert found["packages"].status == "missing"
    old, absent = found["packages"].detail.split("; ")
    assert old.startswith("psutil ")
    assert old.endswith(" does not meet >=9999")
    assert absent == "no-such-package-anywhere is not installed"
    assert "uv pip install -r requirements.txt" in found["packages"].remedy
    found = checks_of(tmp_path, "no-such-package-anywhere; python_version < '3.0'", python=">=99")
    assert found["packages"].detail == "all 0 meet the project's requirements"
    assert found["python"].status == "missing"
    assert "does not meet >=99" in found["python"].detail


def test_an_installed_project_is_asked_by_its_metadata(tmp_path, monkeypatch):
    information = tmp_path / "mlproject-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mlproject\nVersion: 0.1.0\nRequires-Python: >=3.10\n"
        "Requires-Dist: psutil>=6\nRequires-Dist: fvcore>=99; extra == 'dev'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = [*package_checks(tmp_path / "no-tree")][1]
    assert packages.detail == "all 1 meet the project's requirements"


@pytest.fixture
def no_cuda(library, monkeypatch):
    """Return a function that sets what NVML sees while torch sees nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def driver(devices_seen, cuda_version=12040):
        nvml = SimpleNamespace(
            nvmlDeviceGetCount=lambda: devices_seen,
            nvmlSystemGetCudaDriverVersion=lambda: cuda_version,
        )
        absent = UnknownFactError("NVML: NVML Shared Library Not Found")
        library("nvml", Mock(side_effect=[nvml] if devices_seen else absent))

    return driver


def found():
    return {check.name: check for check in device_checks()}


def test_the_cpu_of_this_machine_works_and_a_wrong_result_is_found(no_cuda, monkeypatch):
    no_cuda(0)
    check = found()["cpu"]
    assert check.status == "ok"
    assert torch.__version__ in check.detail
    right = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", lambda *a: right(*a) * 2)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    checks = found()
    assert checks["cpu"].status == "missing"
    assert "wrong result" in checks["cpu"].detail
    assert "arm64" in checks["mps"].remedy
    monkeypatch.setitem(sys.modules, "torchvision", None)
    [check] = found().values()
    assert (check.name, check.status) == ("torch", "missing")
    assert "uv pip install --reinstall torch torchvision" in check.remedy


BUILT_FOR_13 = "torch is built for CUDA 13.2 and the driver speaks CUDA 12.4 at most"


@pytest.mark.parametrize(
    ("devices", "driver", "built_for", "hidden", "detail", "remedy"),
    [
        (0, 12040, "13.2", False, "no NVIDIA device with a driver here", None),
        (1, 12040, "13.2", False, BUILT_FOR_13, "update the NVIDIA driver, or install a torch"),
        (1, 12040, None, False, "this build of torch has no CUDA", "install the default build"),
        (2, 13020, "13.2", True, "torch sees none of 2 devices with CUDA_VISIBLE_DEVICES=''",
         "unset CUDA_VISIBLE_DEVICES"),
    ],
)  # fmt: skip
def test_a_card_that_torch_cannot_use(
    no_cuda, monkeypatch, devices, driver, built_for, hidden, detail, remedy
):
    no_cuda(devices, driver)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check = found()["cuda"]
    assert (check.status, check.detail) == ("ok" if remedy is None else "warning", detail)
    assert check.remedy is remedy or check.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("capability", "detail", "remedy"),
    [
        ((7, 5), "no kernel image", "install the default build"),
        ((3, 7), "none for Tesla K80 (sm_37)", "older CUDA"),
    ],
)
def test_a_card_whose_kernels_do_not_run(monkeypatch, capability, detail, remedy):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla K80")
    ones = torch.ones

    def no_kernel(*size, device=None, **options):
        if torch.device(device).type == "cuda":
            raise RuntimeError("CUDA error: no kernel image is available for execution")
        return ones(*size, device=device, **options)

    monkeypatch.setattr(torch, "ones", no_kernel)
    checks = found()
    assert checks["cpu"].status == "ok"
    assert checks["cuda:0"].status == "warning"
    assert detail in checks["cuda:0"].detail
    assert remedy in checks["cuda:0"].remedy
