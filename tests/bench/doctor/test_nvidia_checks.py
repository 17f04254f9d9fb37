import os
from unittest.mock import Mock

import pytest
from scripted_nvml import ScriptedNvml

from bench.doctor import nvidia_checks
from bench.machine import UnknownFactError, gpu_drivers
from bench.profilers.ncu.tool import NcuTool

pytestmark = pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for programs")

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
    only_programs(
        "ncu",
        'case "$*" in *gh100) echo "gpu__time_duration Counter ns";; '
        f"--query*) exit 1;; *) {AS_2024};; esac",
    )
    tree(CARD)
    checks = found()
    assert checks["nvml"].status == checks["ncu"].status == "ok"
    assert checks["nvml"].detail == "driver 580.95.05: NVIDIA H200"
    assert checks["ncu"].detail.startswith("ncu 2024.1.1 at ")
    check = found(capability=lambda: (12, 0))["ncu"]
    assert check.status == "warning"
    assert "ncu 2024.1.1 tells no metrics of compute capability 12.0" in check.detail
    assert "CUDA 12.8" in check.remedy
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
