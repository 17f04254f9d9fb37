import os
import subprocess
import sys
from importlib import metadata

import pynvml
import pytest
import torch

from bench.machine import cpu_device_info, read_environment
from bench.machine.probes import UnknownFactError, open_nvml
from bench.records import Environment


def test_this_machine(tmp_path):
    found = read_environment(cpu_device_info(), tmp_path / "records", "auto")
    assert Environment.model_validate_json(found.model_dump_json()) == found
    assert torch.__version__.split("+")[0] == found.torch.split("+")[0]
    assert found.torch == metadata.version("torch")
    assert found.cuda == torch.version.cuda
    assert found.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found.cpu_cores_usable >= 1
    assert {"numpy", "pillow"} <= found.packages.keys()
    assert found.label
    assert found.storage


def test_a_label_that_was_given_is_kept(tmp_path):
    assert read_environment(cpu_device_info(), tmp_path, "my-laptop").label == "my-laptop"


@pytest.mark.skipif(sys.platform != "linux", reason="only there does the root hold the facts")
def test_a_machine_that_tells_nothing_gives_reasons_and_no_error(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise OSError("out of order")

    monkeypatch.setattr("psutil.disk_partitions", broken)
    monkeypatch.setattr("psutil.sensors_battery", broken, raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: None)
    monkeypatch.setattr("torch.backends.cudnn.version", broken)
    monkeypatch.setenv("PATH", "")
    empty = tmp_path / "empty"
    empty.mkdir()
    found = read_environment(cpu_device_info(empty), tmp_path, "auto", root=empty)
    for name in ("cpu_model", "cpu_cores_physical", "storage", "git_commit", "container"):
        assert getattr(found, name) is None
        assert found.missing[name]
    assert found.missing["cudnn"] == "OSError: out of order"
    assert found.missing["virtualization"]
    assert found.missing["cloud_provider"] == "the firmware names no maker"


def test_importing_the_environment_imports_no_torch():
    ask = "import bench.machine, bench.launcher.telemetry, sys; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", ask], env=environment, check=False).returncode == 0


def test_a_missing_management_library_is_a_reason(monkeypatch):
    def absent():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    with pytest.raises(UnknownFactError, match="NVML: NVML Shared Library Not Found"):
        open_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(UnknownFactError, match="nvidia-ml-py is not installed"):
        open_nvml()
