"""What stands in the way of ncu and perf: the words of doctor are those of a profile."""

import os
from unittest.mock import Mock

import pytest
from scripted_nvml import ScriptedNvml

from bench.doctor import nvidia_checks, perf_checks
from bench.machine import UnknownFactError, gpu_drivers
from bench.profilers.ncu.tool import NcuTool
from bench.profilers.perf import find_obstacle

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for programs"),
    pytest.mark.usefixtures("on_linux"),
]

CARD = {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n"}
AS_2024 = 'echo "Version 2024.1.1.0 (build 33998838)"'
NO_CAPABILITIES = "Name:\tpython\nCapEff:\t0000000000000000\n"


def fails_with(reason):
    return Mock(side_effect=UnknownFactError(reason))


@pytest.fixture
def found(library, monkeypatch):
    def checks(opened=ScriptedNvml, capability=fails_with("no CUDA driver here")):  # noqa: B008
        library("nvml", opened)
        monkeypatch.setattr(gpu_drivers, "compute_capability", capability)
        return {check.name: check for check in nvidia_checks()}

    return checks


def test_without_a_device_there_is_nothing_to_mend_and_a_card_without_nvml_has_a_remedy(
    found, tree, only_programs
):
    tree({"sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n"})
    checks = found(fails_with("NVML: NVML Shared Library Not Found"))
    assert [check.status for check in checks.values()] == ["ok"]
    assert "no NVIDIA device" in checks["nvidia"].detail
    reason = "NVML: RM has detected an NVML/RM version mismatch."
    tree(CARD)
    check = found(fails_with(reason))["nvml"]
    assert (check.status, reason in check.detail) == ("warning", True)
    assert "reboot" in check.remedy


def test_a_card_that_nvml_reads_and_an_ncu_that_may_be_older(found, tree, only_programs):
    only_programs("ncu", f'case "$1" in --query*) exit 1;; *) {AS_2024};; esac')
    tree(CARD)
    checks = found()
    assert checks["nvml"].status == checks["ncu"].status == "ok"
    assert checks["nvml"].detail == "driver 580.95.05: NVIDIA H200"
    assert checks["ncu"].detail.startswith("ncu 2024.1.1 at ")
    check = found(capability=lambda: (12, 0))["ncu"]
    assert check.status == "warning"
    assert "ncu 2024.1.1 tells no metrics of compute capability 12.0" in check.detail
    assert "CUDA 12.8" in check.remedy
    listing = 'echo "gpu__time_duration Counter ns"'
    only_programs("ncu", f'case "$1" in --query*) {listing};; *) {AS_2024};; esac')
    assert found(capability=lambda: (9, 0))["ncu"].status == "ok"


PARAMS = "proc/driver/nvidia/params"


def test_profile_and_doctor_say_the_same(found, tree, only_programs):
    """One source: what doctor warns of is what stops a profile."""
    tree({**CARD, PARAMS: "RmProfilingAdminOnly: 1\n", "proc/self/status": NO_CAPABILITIES})
    tool = NcuTool(capability=lambda: (9, 0))
    check = found()["ncu"]
    assert tool.obstacle("cuda") == f"{check.detail}; {check.remedy}"
    only_programs("ncu", AS_2024)
    check = found()["gpu counters"]
    assert check.status == "warning"
    assert tool.obstacle("cuda") == f"{check.detail}; {check.remedy}"
    tree({PARAMS: "RmProfilingAdminOnly: 0\n"})
    assert found()["gpu counters"].status == "ok"


# perf

INSTALL = "install the package of the running kernel"
PERMIT = "on the host, sudo sysctl kernel.perf_event_paranoid=2"
BY_HAND = "try `perf stat -e instructions"
# The words of perf 6.1, 5.4 and Ubuntu's wrapper.
NO_PERMISSION = (
    "echo 'Error:' >&2; echo 'No permission to enable instructions event.' >&2; exit 255"
)
TOO_OLD = 'echo "  Error: unknown option \\`control\'" >&2; exit 129'
OLDER = 'echo "Error: option \\`delay\' expects an unsigned numerical value" >&2; exit 129'
NOT_OF_THIS_KERNEL = (
    "echo 'WARNING: perf not found for kernel 6.8.0-45' >&2; echo >&2; "
    "echo '  You may need to install linux-tools-6.8.0-45-generic' >&2; exit 2"
)


def counting(clock, instructions):
    """A perf that writes these two values to the file after `-o`."""
    return (
        'while [ "$1" != -o ]; do shift; done; '
        f"echo '{clock};msec;task-clock;9;100.00;;' > $2; "
        f"echo '{instructions};;instructions:u;9;100.00;;' >> $2"
    )


NO_COUNTERS = counting("0.50", "<not supported>")


def check_of():
    (check,) = perf_checks()
    obstacle = find_obstacle()
    if obstacle is not None:
        assert (check.detail, check.remedy) == (obstacle.what, obstacle.remedy)
        assert "\n" not in str(obstacle)
        assert check.status == "warning"
    return check


@pytest.mark.parametrize("instructions", ["141218", "<not counted>"])  # the gate stays shut
def test_perf_that_counts_is_tried_with_the_options_of_a_profile(
    only_programs, tmp_path, instructions
):
    only_programs("perf", f'echo "$@" > {tmp_path}/asked; {counting("0.50", instructions)}')
    check = check_of()
    assert (check.status, check.detail) == ("ok", "counts")
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("stat -x ; -o ")
    assert " -D -1 --control fifo:" in asked
    assert asked.endswith("-e task-clock -e instructions -- true\n")


#: What perf does (None: it is not installed), detail and remedy.
OBSTACLES = {
    "absent": (None, "perf is not installed", INSTALL),
    "without control": (TOO_OLD, "too old (option `control'", INSTALL),
    "without delay": (OLDER, "too old (option `delay'", INSTALL),
    "wrapper": (NOT_OF_THIS_KERNEL, "perf not found for kernel 6.8.0-45", INSTALL),
    "paranoid": (NO_PERMISSION, "forbids to count here (No permission to enable)", PERMIT),
    "guest": (NO_COUNTERS, "this machine shows no hardware counters", "in a virtual machine"),
    "its own fault": ("echo 'Error:' >&2; echo 'out of sorts' >&2; exit 3",
                      "no counts (perf: out of sorts)", BY_HAND),
}  # fmt: skip


@pytest.mark.parametrize(("perf", "detail", "remedy"), OBSTACLES.values(), ids=OBSTACLES.keys())
def test_each_obstacle_has_its_cause_and_remedy(only_programs, perf, detail, remedy):
    if perf is not None:
        only_programs("perf", perf)
    check = check_of()
    assert detail in check.detail
    assert check.remedy.startswith(remedy)


def test_a_perf_that_is_no_program_and_a_system_that_has_none(monkeypatch, tree, only_programs):
    only_programs("perf", "").write_bytes(b"\x7fELF but not quite")
    assert "no counts (perf does not start" in check_of().detail
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert list(perf_checks()) == []
    assert "--tool torch" in find_obstacle().remedy
