import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.doctor import Diagnosis, diagnosis, host_checks, run_checks
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
