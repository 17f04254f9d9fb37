import os

import pytest

from bench.doctor.perf import perf_checks

pytestmark = pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for programs")

PARANOID = "proc/sys/kernel/perf_event_paranoid"
NO_CAPABILITIES = {"proc/self/status": "CapEff:\t0000000000000000\n"}


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")


def check_of(root):
    (check,) = perf_checks(root)
    return check


def test_perf_that_counts(files, only_programs):
    only_programs("perf", "echo '141218,,instructions:u,500000,100.00,,'")
    check = check_of(files({PARANOID: "2\n"}))
    assert (check.status, check.detail) == ("ok", "counts; perf_event_paranoid is 2")


def test_perf_is_asked_for_its_own_processes_in_user_mode(files, only_programs, tmp_path):
    only_programs("perf", f'echo "$@" > {tmp_path}/asked; echo 1,')
    check_of(files({}))
    assert (tmp_path / "asked").read_text().split() == (
        ["stat", "-x,", "--log-fd", "1", "-e", "instructions:u", "--", "true"]
    )


def test_no_perf(files, only_programs):
    check = check_of(files({}))
    assert check.status == "warning"
    assert "apt install linux-perf" in check.remedy


def test_a_system_that_forbids_counting(files, only_programs):
    only_programs(
        "perf", "echo 'Error: No permission to enable instructions:u event.' >&2; exit 255"
    )
    check = check_of(files({PARANOID: "4\n", **NO_CAPABILITIES}))
    assert check.detail == "perf_event_paranoid is 4: users may not count"
    assert check.remedy == "sudo sysctl kernel.perf_event_paranoid=2"


def test_a_virtual_machine_without_counters(files, only_programs):
    only_programs("perf", "echo '<not supported>,,instructions:u,0,100.00,,'")
    check = check_of(files({PARANOID: "2\n"}))
    assert check.status == "warning"
    assert "no hardware counters" in check.detail


def test_a_perf_of_another_kernel(files, only_programs):
    only_programs("perf", "echo 'WARNING: perf not found for kernel 6.8.0-45' >&2; exit 2")
    check = check_of(files({PARANOID: "1\n"}))
    assert "perf not found for kernel 6.8.0-45" in check.detail
    assert "perf of the running kernel" in check.remedy


def test_other_systems_have_no_perf(monkeypatch, files):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert list(perf_checks(files({}))) == []
