import json
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from click.testing import CliRunner

from bench.doctor import (
    Diagnosis,
    device_checks,
    diagnosis,
    host_checks,
    package_checks,
    run_checks,
)
from bench.machine import UnknownFactError, environment, limits
from commands.doctor import Doctor

NO_NCU = Diagnosis("ncu", "warning", "not found", "install it")
NO_TORCH = Diagnosis("torch", "missing", "not found", "install it")


def test_a_group_that_fails_does_not_take_the_others_along():
    def broken():
        yield diagnosis("first", "fine")
        raise ImportError("No module named 'mlflow'")

    checks = run_checks({"tracking": broken, "host": lambda: [diagnosis("disk", "plenty")]})
    assert [one.name for one in checks] == ["tracking", "disk"]
    assert checks[0].status == "missing"
    assert checks[0].detail == "the check itself failed: ImportError: No module named 'mlflow'"


@pytest.fixture
def machine(monkeypatch):
    """Return the list of checks that this machine will give; none come from a server."""
    checks = []
    monkeypatch.setattr("bench.doctor.machine_groups", lambda _: {"host": lambda: checks})
    monkeypatch.setattr(
        "commands.doctor._tracking_checks", lambda: [diagnosis("server", "answers")]
    )
    return checks


def run(*arguments):
    return CliRunner().invoke(
        Doctor.command(), arguments, standalone_mode=False, env={"COLUMNS": "100"}
    )


def test_json_is_a_list_of_checks_and_the_exit_code_is_about_a_cpu_run(machine):
    machine.append(NO_NCU)
    done = run("--format", "json")
    assert done.return_value == 0
    assert json.loads(done.stdout) == [
        {"name": "ncu", "status": "warning", "detail": "not found", "remedy": "install it"},
        {"name": "server", "status": "ok", "detail": "answers", "remedy": None},
    ]
    machine.append(NO_TORCH)
    assert run().return_value == 1


@pytest.mark.slow
def test_this_machine_end_to_end(mlproject_command):
    code, out, _ = mlproject_command("doctor", "--format", "json")
    checks = {one["name"]: one for one in json.loads(out)}
    assert checks.keys() >= {"python", "packages", "cpu", "cpu bf16", "records", "power"}
    assert code == int(any(one["status"] == "missing" for one in checks.values()))


# The host

Usage = namedtuple("Usage", "total used free")
PLENTY = Usage(10**12, 0, 10**12)
RELEASE = "proc/sys/kernel/osrelease"
BARE = {
    RELEASE: "6.8.0-31-generic\n",
    "proc/cpuinfo": "flags : fpu\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "dev/shm/.keep": "",
}


@pytest.fixture
def disk(monkeypatch, on_linux):
    """Return a dictionary of disk usages by the last part of the path; others have plenty."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("PATH", "")  # systemd would tell of the real machine
    usages = {}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usages.get(Path(path).name, PLENTY))
    return usages


def found(records):
    return {check.name: check for check in host_checks(records)}


def test_a_sound_machine_and_what_is_unknown_are_no_fault(tree, disk, tmp_path, monkeypatch):
    def unknown(*_):
        raise UnknownFactError("no such file")

    tree(BARE)
    checks = found(tmp_path / "records")
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["surroundings"].detail == "container none, hypervisor none"
    assert checks["records"].detail == f"1000.0 GB free in {tmp_path}"
    monkeypatch.setattr(environment, "power_source", unknown)
    monkeypatch.setattr(limits, "virtualization", unknown)
    (tmp_path / "a-file").write_text("")
    checks = found(tmp_path / "a-file" / "records")
    assert checks["power"].detail == "unknown: no such file"
    assert checks["surroundings"].detail == "container none, hypervisor unknown"
    assert checks["records"].status == "missing"
    assert "cannot write" in checks["records"].detail


@pytest.mark.parametrize(
    ("files", "name", "detail", "remedy"),
    [
        ({}, "records", "1.0 GB free", "free some space"),
        ({".dockerenv": ""}, "shared memory", "holds 0.07 GB", "--shm-size=8g"),
        ({RELEASE: "4.4.0-19041-Microsoft\n"}, "surroundings", "no GPU", "wsl --set-version"),
        ({RELEASE: "5.15.90.1-microsoft-standard-WSL2\n"}, "surroundings", "spills",
         "Sysmem Fallback"),
        ({}, "power", "on battery", "plug it in"),
    ],
)  # fmt: skip
def test_what_hurts_a_measurement_has_a_remedy(
    tree, disk, tmp_path, monkeypatch, files, name, detail, remedy
):
    disk[tmp_path.name] = Usage(10**12, 10**12, 10**9)
    disk["shm"] = Usage(67_108_864, 0, 67_108_864)
    monkeypatch.setattr(environment, "power_source", lambda virtual: "battery")
    tree({**BARE, **files})
    check = found(tmp_path / "records")[name]
    assert check.status == "warning"
    assert detail in check.detail
    assert remedy in check.remedy


def test_an_energy_counter_for_root_alone_has_a_remedy(tree, disk, tmp_path, monkeypatch):
    zone = {"name": "package-0\n", "max_energy_range_uj": "1000\n", "energy_uj": "5\n"}
    files = {f"sys/class/powercap/intel-rapl:0/{name}": text for name, text in zone.items()}
    tree({**BARE, **files})
    assert found(tmp_path)["cpu energy"].detail == "RAPL can be read"
    read_text = Path.read_text

    def forbidden(self, *arguments, **options):
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", forbidden)
    check = found(tmp_path)["cpu energy"]
    assert check.remedy == "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"


# What is installed, and devices


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


def of_devices():
    return {check.name: check for check in device_checks()}


def test_the_cpu_of_this_machine_works_and_a_wrong_result_is_found(no_cuda, monkeypatch):
    no_cuda(0)
    check = of_devices()["cpu"]
    assert check.status == "ok"
    assert torch.__version__ in check.detail
    right = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", lambda *a: right(*a) * 2)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    checks = of_devices()
    assert checks["cpu"].status == "missing"
    assert "wrong result" in checks["cpu"].detail
    assert "arm64" in checks["mps"].remedy
    monkeypatch.setitem(sys.modules, "torchvision", None)
    [check] = of_devices().values()
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
    check = of_devices()["cuda"]
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
    checks = of_devices()
    assert checks["cpu"].status == "ok"
    assert checks["cuda:0"].status == "warning"
    assert detail in checks["cuda:0"].detail
    assert remedy in checks["cuda:0"].remedy
