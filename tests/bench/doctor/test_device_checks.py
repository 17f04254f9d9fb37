from types import SimpleNamespace

import pytest
import torch

from bench.doctor import installation
from bench.doctor.installation import device_checks
from bench.machine.probes import UnknownFactError


@pytest.fixture
def no_cuda(monkeypatch):
    """Return a function that sets what NVML sees while torch sees nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def driver(devices_seen, cuda_version=12040):
        def opener():
            if not devices_seen:
                raise UnknownFactError("NVML: NVML Shared Library Not Found")
            return SimpleNamespace(
                nvmlDeviceGetCount=lambda: devices_seen,
                nvmlSystemGetCudaDriverVersion=lambda: cuda_version,
            )

        monkeypatch.setattr(installation, "open_nvml", opener)

    return driver


def found():
    return {check.name: check for check in device_checks()}


def test_the_cpu_of_this_machine_works(no_cuda):
    no_cuda(0)
    check = found()["cpu"]
    assert check.status == "ok"
    assert torch.__version__ in check.detail


def test_a_wrong_result_is_found(no_cuda, monkeypatch):
    no_cuda(0)
    right = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", lambda *a: right(*a) * 2)
    check = found()["cpu"]
    assert check.status == "missing"
    assert "wrong result" in check.detail


def test_a_torch_that_does_not_import(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchvision", None)
    checks = found()
    assert list(checks) == ["torch"]
    assert checks["torch"].status == "missing"
    assert "uv pip install --reinstall torch torchvision" in checks["torch"].remedy


@pytest.mark.parametrize(("native", "status"), [(True, "ok"), (False, "warning")])
def test_bf16_of_the_processor(no_cuda, monkeypatch, native, status):
    no_cuda(0)
    cpu = SimpleNamespace(native_math=lambda mode: native and mode == "bf16")
    monkeypatch.setattr("bench.training.devices.open_device", lambda backend: cpu)
    assert found()["cpu bf16"].status == status


def test_no_nvidia_device_is_fine(no_cuda):
    no_cuda(0)
    assert found()["cuda"].status == "ok"


def test_a_driver_older_than_torchs_cuda(no_cuda, monkeypatch):
    no_cuda(1, 12040)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    check = found()["cuda"]
    assert check.status == "warning"
    assert check.detail == "torch is built for CUDA 13.2 and the driver speaks CUDA 12.4 at most"
    assert "CUDA 12" in check.remedy


def test_a_torch_without_cuda_beside_a_card(no_cuda, monkeypatch):
    no_cuda(1)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert found()["cuda"].detail == "this build of torch has no CUDA"


def test_a_hidden_card(no_cuda, monkeypatch):
    no_cuda(2, 13020)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check = found()["cuda"]
    assert check.detail == "torch sees none of 2 devices with CUDA_VISIBLE_DEVICES=''"
    assert check.remedy == "unset CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(("available", "status"), [(False, "warning")])
def test_a_mac_without_its_gpu(no_cuda, monkeypatch, available, status):
    no_cuda(0)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: available)
    check = found()["mps"]
    assert check.status == status
    assert "arm64" in check.remedy


def test_a_card_whose_kernels_do_not_run(monkeypatch):
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
    assert "no kernel image" in checks["cuda:0"].detail
