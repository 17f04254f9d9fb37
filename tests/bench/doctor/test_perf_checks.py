"""What stands in perf's way: the words of doctor are those of a profile."""

import os

import pytest

from bench.doctor.checks import perf_checks
from bench.profilers.perf import find_obstacle

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for programs"),
    pytest.mark.usefixtures("on_linux"),
]

PARANOID = "proc/sys/kernel/perf_event_paranoid"
RELEASE = "proc/sys/kernel/osrelease"
CPUINFO = "proc/cpuinfo"
WSL = {RELEASE: "5.15.90.1-microsoft-standard-WSL2\n"}
CGROUP = "proc/self/cgroup"
DMI = "sys/class/dmi/id"
SYSCTL = "sudo sysctl kernel.perf_event_paranoid=2"
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
THIS_MACHINE = "this machine shows no hardware counters"


def check_of(root):
    (check,) = perf_checks(root)
    obstacle = find_obstacle(root)
    if obstacle is not None:
        assert (check.detail, check.remedy) == (obstacle.what, obstacle.remedy)
        assert "\n" not in str(obstacle)
        assert check.status == "warning"
    return check


@pytest.mark.parametrize("instructions", ["141218", "<not counted>"])  # the gate stays shut
def test_perf_that_counts_is_tried_with_the_options_of_a_profile(
    tree, only_programs, tmp_path, instructions
):
    only_programs("perf", f'echo "$@" > {tmp_path}/asked; {counting("0.50", instructions)}')
    check = check_of(tree({PARANOID: "2\n"}))
    assert (check.status, check.detail) == ("ok", "counts")
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("stat -x ; -o ")
    assert " -D -1 --control fifo:" in asked
    assert asked.endswith("-e task-clock -e instructions -- true\n")


def forbidden(level, **around):
    """A machine of this perf_event_paranoid, to a process without capabilities."""
    return {PARANOID: f"{level}\n", "proc/self/status": "CapEff:\t0000000000000000\n", **around}


#: What perf does (None: it is not installed), the machine's files, detail and remedy.
OBSTACLES = {
    "absent": (None, {}, "perf is not installed", "install it: sudo apt install linux-perf"),
    "without control": (TOO_OLD, {}, "(--control)", "install that of Linux 5.10 or later"),
    "without delay": (OLDER, {}, "(--control)", "install that of Linux 5.10 or later"),
    "wrapper": (NOT_OF_THIS_KERNEL, {RELEASE: "6.8.0-45-generic\n"},
                "perf not found for kernel 6.8.0-45", "sudo apt install linux-tools-$(uname -r)"),
    "wrapper on WSL": (NOT_OF_THIS_KERNEL, WSL, "perf not found for kernel 6.8.0-45",
                       "sudo apt install linux-tools-generic"),
    "paranoid": (NO_PERMISSION, forbidden(4, **{CGROUP: "0::/user.slice\n"}),
                 "perf_event_paranoid is 4: users may not count", SYSCTL),
    "paranoid host": (NO_PERMISSION, forbidden(3, **{".dockerenv": ""}),
                      "perf_event_paranoid is 3: users may not count", f"on the host, {SYSCTL}"),
    "docker": (NO_PERMISSION, forbidden(2, **{".dockerenv": ""}),
               "the docker container forbids perf_event_open", "start it with --cap-add=PERFMON"),
    "podman": (NO_PERMISSION, forbidden(2, **{"run/.containerenv": ""}),
               "the podman container forbids perf_event_open", "start it with --cap-add=PERFMON"),
    "pod": (NO_PERMISSION, forbidden(2, **{"var/run/secrets/kubernetes.io/x": ""}),
            "the kubernetes container forbids perf_event_open",
            "give the pod securityContext.capabilities.add: [PERFMON]"),
    "sandbox": (NO_PERMISSION, forbidden(2, **{CGROUP: "0::/x\n"}),
                "seccomp filter", "profile as root, or outside the sandbox"),
    "no events": (counting("<not supported>", "<not supported>"), {}, "not even time",
                  "in a container, start it with --security-opt seccomp=unconfined"),
    "guest": (NO_COUNTERS, {RELEASE: "6.1.0\n", CPUINFO: "flags\t: fpu hypervisor\n"},
              THIS_MACHINE, "a virtual machine has those its host passes on"),
    "unknown processor": (NO_COUNTERS, {RELEASE: "6.1.0\n", CPUINFO: "flags\t: fpu\n"},
                          THIS_MACHINE, "this kernel does not know its processor"),
    "WSL": (NO_COUNTERS, WSL, THIS_MACHINE, "wsl --update, and remove hardwarePerformance"),
    "VMware": (NO_COUNTERS, {RELEASE: "6.1.0\n", f"{DMI}/sys_vendor": "VMware, Inc.\n"},
               THIS_MACHINE, "switch on `Virtualize CPU performance counters`"),
    "Hyper-V": (NO_COUNTERS, {RELEASE: "6.1.0\n", f"{DMI}/product_name": "Virtual Machine\n"},
                THIS_MACHINE, "on the host, Set-VMProcessor"),
    "its own fault": ("echo 'Error:' >&2; echo 'out of sorts' >&2; exit 3", {},
                      "perf cannot count: out of sorts", "try `perf stat -e instructions"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("perf", "machine", "detail", "remedy"), OBSTACLES.values(), ids=OBSTACLES.keys()
)
def test_each_obstacle_has_its_cause_and_remedy(tree, only_programs, perf, machine, detail, remedy):
    if perf is not None:
        only_programs("perf", perf)
    check = check_of(tree(machine))
    assert detail in check.detail
    assert check.remedy.startswith(remedy)


def test_a_perf_that_is_no_program_and_a_system_that_has_none(monkeypatch, tree, only_programs):
    only_programs("perf", "").write_bytes(b"\x7fELF but not quite")
    assert "perf does not start" in check_of(tree({})).detail
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert list(perf_checks(tree({}))) == []
    assert "Instruments" in find_obstacle(tree({})).remedy
