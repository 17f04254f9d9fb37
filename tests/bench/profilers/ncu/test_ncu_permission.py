import os

import pytest

from bench.profilers.ncu.complaints import counter_permission, permission_remedy

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Linux's files hold the permission")

PARAMS = "proc/driver/nvidia/params"
FORBIDDEN = {
    PARAMS: "EnableMSI: 1\nRmProfilingAdminOnly: 1\n",
    "proc/self/status": "CapEff:\t00000000a80425fb\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "proc/sys/kernel/osrelease": "6.8.0-generic\n",
}
SYS_ADMIN = "CapEff:\t0000000000200000\n"
PERFMON = "CapEff:\t0000004000000000\n"
DRIVER = "proc/driver/nvidia/version"
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({PARAMS: "RmProfilingAdminOnly: 0\n"}, "allowed"),
        ({PARAMS: "EnableMSI: 1\n"}, "allowed"),
        ({}, "forbidden"),
        ({"proc/self/status": SYS_ADMIN}, "allowed"),
        ({"proc/self/status": PERFMON}, "forbidden"),
        ({"proc/self/status": PERFMON, DRIVER: VERSION.format("550.54.15")}, "forbidden"),
        ({"proc/self/status": PERFMON, DRIVER: VERSION.format("565.57.01")}, "allowed"),
    ],
)
def test_the_drivers_files_show_the_permission(tree, changes, state):
    assert counter_permission(tree({**FORBIDDEN, **changes}), {}).state == state


def test_a_machine_without_the_drivers_file_must_try(tree):
    permission = counter_permission(tree({"proc/self/cgroup": "0::/\n"}), {})
    assert permission.state == "unknown"
    assert permission.remedy


def test_the_remedy_of_a_plain_machine_is_sudo_or_the_modules_option(tree):
    remedy = permission_remedy(tree({**FORBIDDEN, "usr/sbin/dracut": ""}), {})
    assert 'sudo -E env "PATH=$PATH" mlproject profile' in remedy
    assert "NVreg_RestrictProfilingToAdminUsers=0" in remedy
    assert "sudo dracut --force" in remedy
    assert "cap-add" not in remedy
    debian = permission_remedy(tree({"usr/sbin/update-initramfs": ""}), {})
    assert "sudo update-initramfs -u" in debian


@pytest.mark.parametrize(
    ("inside", "remedy"),
    [
        ({".dockerenv": ""}, "--cap-add=SYS_ADMIN"),
        ({"run/.containerenv": "", DRIVER: VERSION.format("580.95.05")}, "--cap-add=PERFMON"),
        ({"var/run/secrets/kubernetes.io/x": ""}, 'capabilities: {add: ["SYS_ADMIN"]}'),
        ({".singularity.d/x": ""}, "on the host, write `options nvidia"),
    ],
)
def test_each_container_has_its_own_remedy(tree, inside, remedy):
    found = permission_remedy(tree({**FORBIDDEN, **inside}), {})
    assert remedy in found
    assert "sudo -E" not in found


def test_under_wsl_windows_decides(tree):
    root = tree({"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"})
    permission = counter_permission(root, {})
    assert permission.state == "unknown"
    assert "Windows decides" in permission.detail
    assert "NVIDIA Control Panel" in permission.remedy
    assert "driver 525" in permission.remedy
