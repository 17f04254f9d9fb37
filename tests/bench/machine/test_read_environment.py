import sys
from importlib import metadata

import pytest
import samples
import torch

from bench.config import RunConfig
from bench.machine.cpu import cpu_device_info
from bench.machine.environment import environment_label, read_environment, speed_variables
from bench.records import DeviceInfo, Environment


def test_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    found = read_environment(cpu_device_info(), tmp_path / "records", "auto")
    assert Environment.model_validate_json(found.model_dump_json()) == found
    assert torch.__version__.split("+")[0] == found.torch.split("+")[0]
    assert found.torch == metadata.version("torch")
    assert found.cuda == torch.version.cuda
    assert found.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found.cpu_cores_usable >= 1
    assert {"numpy", "pillow"} <= found.packages.keys()
    assert ("nccl" in found.packages) <= (torch.version.cuda is not None)
    assert found.label
    assert found.storage
    assert found.variables["OMP_PROC_BIND"] == "close"
    assert "OMP_PROC_BIND=close" in found.variables_set


def device(backend, name):
    return samples.facts(DeviceInfo, backend=backend, name=name)


@pytest.mark.parametrize(
    ("backend", "name", "label"),
    [
        ("cuda", "NVIDIA H200", "nvidia-h200"),
        ("cuda", "NVIDIA GeForce RTX 4090 Laptop GPU", "nvidia-geforce-rtx-4090-laptop-gpu"),
        ("cuda", "Tesla T4", "tesla-t4"),
        ("mps", "Apple M3 Max", "apple-m3-max"),
        ("cpu", "Apple M3 Max", "apple-m3-max-cpu"),
        ("cpu", "AMD EPYC", "amd-epyc"),
        ("cpu", "AMD EPYC 7B12 64-Core Processor", "amd-epyc-7b12"),
        ("cpu", "AMD Ryzen 7 7840U with Radeon 780M Graphics", "amd-ryzen-7-7840u"),
        ("cpu", "Intel(R) Core(TM) i9-14900HX", "intel-core-i9-14900hx"),
        ("cpu", "Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-xeon"),
        ("cpu", "CPU", "cpu"),
        ("cuda", "显卡", "cuda"),
        ("cuda", "x" * 63 + " y", "x" * 63),
    ],
)
def test_labels_of_devices(backend, name, label):
    assert environment_label(device(backend, name)) == label == RunConfig(env=label).env


def test_what_libraries_compute_by_is_kept_and_nothing_else():
    environ = {
        "OMP_PROC_BIND": "true",
        "KMP_AFFINITY": "granularity=fine,compact",
        "NVIDIA_TF32_OVERRIDE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/home/somebody/cache",
        "MKL_HOME": "/home/somebody/mkl",
        "MLFLOW_TRACKING_PASSWORD": "secret",
        "TORCH_COMPILE_DISABLE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "PYTORCH_MIOPEN_SUGGEST_NHWC": "1",
        "TORCHINDUCTOR_REDIS_URL": "redis://:secret@host:6379/0",
        "NCCL_API_KEY": "secret",
        "MKL_PASSWORD": "secret",
        "OMP_SECRET": "secret",
        "NCCL_PROXY": "https://user:secret@host",
        "PATH": "/usr/bin",
    }
    assert speed_variables(environ) == {
        "KMP_AFFINITY": "granularity=fine,compact",
        "NVIDIA_TF32_OVERRIDE": "1",
        "OMP_PROC_BIND": "true",
        "TORCH_COMPILE_DISABLE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "PYTORCH_MIOPEN_SUGGEST_NHWC": "1",
        **dict.fromkeys(
            ("TORCHINDUCTOR_REDIS_URL", "NCCL_API_KEY", "MKL_PASSWORD", "OMP_SECRET", "NCCL_PROXY"),
            "(left out)",
        ),
    }


def test_a_machine_that_tells_nothing_gives_reasons_and_no_error(tree, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise OSError("out of order")

    monkeypatch.setattr("platform.system", lambda: "Linux")  # whose root holds the facts
    monkeypatch.setattr("psutil.disk_partitions", broken)
    monkeypatch.setattr("psutil.sensors_battery", broken, raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: None)
    monkeypatch.setattr("torch.backends.cudnn.version", broken)
    monkeypatch.setenv("PATH", "")
    tree({})
    found = read_environment(cpu_device_info(), tmp_path, "my-laptop")
    assert found.label == "my-laptop"
    for name in ("cpu_model", "cpu_cores_physical", "storage", "git_commit"):
        assert getattr(found, name) is None
        assert found.missing[name]
    assert found.missing["cudnn"] == "OSError: out of order"
    assert found.missing["virtualization"]
    assert "not named" in found.missing["cloud_provider"]
