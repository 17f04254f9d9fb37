"""What stands in perf's way: the words of doctor are those of a profile."""

import os

import pytest

from bench.doctor import perf_checks
from bench.profilers.perf import find_obstacle

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for programs"),
    pytest.mark.usefixtures("on_linux"),
]

PARANOID = "proc/sys/kernel/perf_event_paranoid"
CGROUP = "proc/self/cgroup"
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
    tree, only_programs, tmp_path, instructions
):
    only_programs("perf", f'echo "$@" > {tmp_path}/asked; {counting("0.50", instructions)}')
    tree({PARANOID: "2\n"})
    check = check_of()
    assert (check.status, check.detail) == ("ok", "counts")
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("stat -x ; -o ")
    assert " -D -1 --control fifo:" in asked
    assert asked.endswith("-e task-clock -e instructions -- true\n")


#: What perf does (None: it is not installed), the machine's files, detail and remedy.
OBSTACLES = {
    "absent": (None, {}, "perf is not installed", INSTALL),
    "without control": (TOO_OLD, {}, "too old (option `control'", INSTALL),
    "without delay": (OLDER, {}, "too old (option `delay'", INSTALL),
    "wrapper": (NOT_OF_THIS_KERNEL, {}, "perf not found for kernel 6.8.0-45", INSTALL),
    "paranoid": (NO_PERMISSION, {PARANOID: "4\n", CGROUP: "0::/user.slice\n"},
                 "perf_event_paranoid 4, container: none", PERMIT),
    "docker": (NO_PERMISSION, {PARANOID: "2\n", ".dockerenv": ""},
               "perf_event_paranoid 2, container: docker", PERMIT),
    "guest": (NO_COUNTERS, {}, "this machine shows no hardware counters", "in a virtual machine"),
    "its own fault": ("echo 'Error:' >&2; echo 'out of sorts' >&2; exit 3", {},
                      "no counts (perf: out of sorts)", BY_HAND),
}  # fmt: skip


@pytest.mark.parametrize(
    ("perf", "machine", "detail", "remedy"), OBSTACLES.values(), ids=OBSTACLES.keys()
)
def test_each_obstacle_has_its_cause_and_remedy(tree, only_programs, perf, machine, detail, remedy):
    if perf is not None:
        only_programs("perf", perf)
    tree(machine)
    check = check_of()
    assert detail in check.detail
    assert check.remedy.startswith(remedy)


def test_a_perf_that_is_no_program_and_a_system_that_has_none(monkeypatch, tree, only_programs):
    only_programs("perf", "").write_bytes(b"\x7fELF but not quite")
    assert "no counts (perf does not start" in check_of().detail
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert list(perf_checks()) == []
    assert "--tool torch" in find_obstacle().remedy
