"""What stands in perf's way, told by doctor in the words that a profile uses too."""

import os

import pytest

from bench.doctor.profilers import perf_checks
from bench.profilers.perf import find_obstacle

pytestmark = pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for programs")

PARANOID = "proc/sys/kernel/perf_event_paranoid"
NO_CAPABILITIES = {"proc/self/status": "CapEff:\t0000000000000000\n"}
RELEASE = "proc/sys/kernel/osrelease"
CPUINFO = "proc/cpuinfo"
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


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")


def check_of(root):
    (check,) = perf_checks(root)
    obstacle = find_obstacle(root)
    if obstacle is not None:
        assert (check.detail, check.remedy) == (obstacle.cause, obstacle.remedy)
        assert str(obstacle) == f"{check.detail}; {check.remedy}"
        assert "\n" not in str(obstacle)
        assert check.status == "warning"
    return check


@pytest.mark.parametrize("instructions", ["141218", "<not counted>"])  # the gate stays shut
def test_perf_that_counts(tree, only_programs, instructions):
    only_programs("perf", counting("0.50", instructions))
    check = check_of(tree({PARANOID: "2\n"}))
    assert (check.status, check.detail) == ("ok", "counts; perf_event_paranoid is 2")


def test_perf_is_tried_with_the_options_of_a_profile(tree, only_programs, tmp_path):
    only_programs("perf", f'echo "$@" > {tmp_path}/asked; {counting("1", "1")}')
    check_of(tree({}))
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("stat -x ; -o ")
    assert " -D -1 --control fifo:" in asked
    assert asked.endswith("-e task-clock -e instructions -- true\n")


def test_no_perf(tree, only_programs):
    check = check_of(tree({}))
    assert check.detail == "perf is not installed"
    assert "apt install linux-perf" in check.remedy


@pytest.mark.parametrize("words", [TOO_OLD, OLDER])
def test_a_perf_without_control(tree, only_programs, words):
    only_programs("perf", words)
    check = check_of(tree({}))
    assert "--control" in check.detail
    assert "Linux 5.10 or later" in check.remedy


def test_a_perf_of_another_kernel(tree, only_programs):
    only_programs("perf", NOT_OF_THIS_KERNEL)
    check = check_of(tree({RELEASE: "6.8.0-45-generic\n"}))
    assert check.detail.startswith("perf not found for kernel 6.8.0-45")
    assert "apt install linux-tools-$(uname -r)" in check.remedy


def test_a_perf_of_another_kernel_on_wsl(tree, only_programs):
    only_programs("perf", NOT_OF_THIS_KERNEL)
    check = check_of(tree({RELEASE: "5.15.90.1-microsoft-standard-WSL2\n"}))
    assert check.remedy.startswith("sudo apt install linux-tools-generic")


def test_a_system_that_forbids_counting(tree, only_programs):
    only_programs("perf", NO_PERMISSION)
    cgroup = {"proc/self/cgroup": "0::/user.slice\n"}
    check = check_of(tree({PARANOID: "4\n", **NO_CAPABILITIES, **cgroup}))
    assert check.detail == "perf_event_paranoid is 4: users may not count"
    assert check.remedy.startswith("sudo sysctl kernel.perf_event_paranoid=2")


def test_a_system_that_forbids_counting_in_a_container(tree, only_programs):
    only_programs("perf", NO_PERMISSION)
    check = check_of(tree({PARANOID: "3\n", **NO_CAPABILITIES, ".dockerenv": ""}))
    assert check.remedy.startswith("on the host, sudo sysctl kernel.perf_event_paranoid=2")


@pytest.mark.parametrize(
    ("mark", "runtime", "remedy"),
    [
        (".dockerenv", "docker", "--cap-add=PERFMON"),
        ("run/.containerenv", "podman", "--cap-add=PERFMON"),
        ("var/run/secrets/kubernetes.io/x", "kubernetes", "capabilities.add: [PERFMON]"),
    ],
)
def test_a_container_that_forbids_counting(tree, only_programs, mark, runtime, remedy):
    only_programs("perf", NO_PERMISSION)
    check = check_of(tree({PARANOID: "2\n", **NO_CAPABILITIES, mark: ""}))
    assert check.detail == f"the {runtime} container forbids perf_event_open"
    assert remedy in check.remedy


def test_a_sandbox_that_forbids_counting(tree, only_programs):
    only_programs("perf", NO_PERMISSION)
    check = check_of(tree({PARANOID: "2\n", **NO_CAPABILITIES, "proc/self/cgroup": "0::/x\n"}))
    assert "seccomp" in check.detail
    assert "outside the sandbox" in check.remedy


def test_a_kernel_that_counts_nothing_at_all(tree, only_programs):
    only_programs("perf", counting("<not supported>", "<not supported>"))
    check = check_of(tree({PARANOID: "2\n"}))
    assert "not even time" in check.detail
    assert "seccomp=unconfined" in check.remedy


@pytest.mark.parametrize(
    ("machine", "remedy"),
    [
        ({RELEASE: "6.1.0\n", CPUINFO: "flags\t: fpu hypervisor\n"}, "performanceMonitoringUnit"),
        ({RELEASE: "6.1.0\n", CPUINFO: "flags\t: fpu\n"}, "newer kernel"),
        ({RELEASE: "5.15.90.1-microsoft-standard-WSL2\n"}, "hardwarePerformanceCounters"),
        ({RELEASE: "6.1.0\n", "sys/class/dmi/id/sys_vendor": "VMware, Inc.\n"},
         "Virtualize CPU performance counters"),
        ({RELEASE: "6.1.0\n", "sys/class/dmi/id/product_name": "Virtual Machine\n"},
         "Set-VMProcessor"),
    ],
)  # fmt: skip
def test_a_machine_without_counters(tree, only_programs, machine, remedy):
    only_programs("perf", counting("0.50", "<not supported>"))
    check = check_of(tree({PARANOID: "2\n", **machine}))
    assert check.detail == "this machine shows no hardware counters"
    assert remedy in check.remedy


def test_a_perf_that_fails_in_its_own_way(tree, only_programs):
    only_programs("perf", "echo 'Error:' >&2; echo 'out of sorts' >&2; exit 3")
    check = check_of(tree({PARANOID: "1\n"}))
    assert check.detail == "perf cannot count: out of sorts"
    assert "by hand" in check.remedy


def test_a_perf_that_is_no_program(tree, only_programs):
    only_programs("perf", "").write_bytes(b"\x7fELF but not quite")
    assert "perf does not start" in check_of(tree({})).detail


def test_other_systems_have_no_perf(monkeypatch, tree):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert list(perf_checks(tree({}))) == []
    assert "Instruments" in find_obstacle(tree({})).remedy
