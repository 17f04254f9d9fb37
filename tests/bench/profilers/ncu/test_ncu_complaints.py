import os

import pytest
from scripted_ncu import PERMISSION

from bench.profilers.ncu.tool import counter_permission, explain, permission_remedy

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Linux's files hold the permission")

STEP_FAILED = "==ERROR== The application returned an error code (1)."
NOTHING_COUNTED = "==WARNING== No kernels were profiled."
NO_KERNEL = "ncu saw no kernel in the profiled step: see that the step runs on the GPU"
IN_A_KERNEL = '==ERROR== Failed to profile "k" in process 1'
DEVICE = "on device 0"


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        (PERMISSION, ["from this user", "NVreg_RestrictProfilingToAdminUsers=0"]),
        ("The user does not have permission to access NVIDIA GPU Performance Counters on the "
         "target vGPU device 0.", ["part of a GPU", "enable_profiling=1"]),
        ("Failed to access the following 4 metrics: dram__bytes.sum\n==ERROR== If profiling on a "
         "MIG instance, it is not possible to collect metrics from GPU units that are shared with "
         "other MIG instances.", ["MIG", "take a whole GPU"]),
        ("Failed to find metric regex:^flop_count_sp", ["no metric flop_count_sp", "newest"]),
        (f"Insufficient driver version to profile {DEVICE}.",
         ["Insufficient driver version", "Nsight Compute of the driver's CUDA version"]),
        (f"Profiling is not supported {DEVICE}. To find out supported GPUs refer --list-chips.",
         [f"(Profiling is not supported {DEVICE})", "--list-chips"]),
        ("unrecognised option '--config-file'. Use --help.", ["'--config-file'", "newer driver"]),
        ("ERR_NVCMPGPU - Profiling is not supported on the NVIDIA Crypto Mining Processors",
         ["ncu: ERR_NVCMPGPU - Profiling is not supported on the NVIDIA Crypto"]),
        ("Failed to open/create lock file /tmp/nsight-compute-lock. Please check that this "
         "process has write permissions on this file.",
         ["ncu: Failed to open/create lock file /tmp/nsight-compute-lock"]),
        ("Something new", ["ncu: Something new"]),
    ],
)  # fmt: skip
def test_each_complaint_has_its_cause_and_remedy(tree, complaint, words):
    explained = explain(
        f"warm-up\n==ERROR== {complaint}\n{STEP_FAILED}\n{NOTHING_COUNTED}\n", tree({})
    )
    assert [word for word in words if word not in explained] == []
    assert "\n" not in explained
    assert "{" not in explained


def test_another_program_may_hold_the_counters(tree):
    held = "==ERROR== Profiling failed because a driver resource was unavailable"
    explained = explain(f"{held}. Ensure that no other tool (like DCGM) is running.", tree({}))
    assert "dcgmi profile --pause" in explained
    assert "sudo -E" not in explained
    or_forbidden = f"{held} or the user does not have permission to access NVIDIA GPU Performance"
    assert "sudo -E" in explain(or_forbidden, tree({}))


@pytest.mark.parametrize(
    ("console", "explained"),
    [
        ("", None),
        (NOTHING_COUNTED, NO_KERNEL),
        ("==PROF== Connected to process 1\n==WARNING== Some kernel took long\n", None),
        (f"Traceback\nRuntimeError: no\n{STEP_FAILED}\n{NOTHING_COUNTED}\n", None),
        (f"{IN_A_KERNEL}\n{STEP_FAILED}\n", None),
        ('==PROF== Profiling "ERR_NVGPUCTRPERM_kernel" - 0: 0%....100% - 1 pass\n', None),
        (f"{IN_A_KERNEL}\n==PROF== Disconnected\n", 'ncu: Failed to profile "k" in process 1'),
    ],
)
def test_a_step_that_fails_by_itself_is_not_ncus_affair(tree, console, explained):
    assert explain(console, tree({})) == explained


# Permission

PARAMS = "proc/driver/nvidia/params"
FORBIDDEN = {
    PARAMS: "EnableMSI: 1\nRmProfilingAdminOnly: 1\n",
    "proc/self/status": "CapEff:\t00000000a80425fb\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "proc/sys/kernel/osrelease": "6.8.0-generic\n",
}
SYS_ADMIN = "CapEff:\t0000000000200000\n"
PERFMON = "CapEff:\t0000004000000000\n"


@pytest.mark.parametrize(
    ("changes", "is_allowed"),
    [
        ({PARAMS: "RmProfilingAdminOnly: 0\n"}, True),
        ({PARAMS: "EnableMSI: 1\n"}, True),
        ({}, False),
        ({"proc/self/status": SYS_ADMIN}, True),
        ({"proc/self/status": PERFMON}, None),  # by the driver's version
    ],
)
def test_the_drivers_files_show_the_permission(tree, changes, is_allowed):
    assert counter_permission(tree({**FORBIDDEN, **changes}))[0] is is_allowed


def test_a_machine_without_the_drivers_file_must_try_and_under_wsl_windows_decides(tree):
    assert counter_permission(tree({"proc/self/cgroup": "0::/\n"}))[0] is None
    root = tree({"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"})
    is_allowed, detail = counter_permission(root)
    assert is_allowed is None
    assert "Windows decides" in detail
    assert "driver 525" in permission_remedy(root, {})


def test_the_remedy_of_a_plain_machine_is_sudo_or_the_modules_option(tree):
    remedy = permission_remedy(tree(FORBIDDEN), {})
    assert 'sudo -E env "PATH=$PATH" mlproject profile' in remedy
    assert "NVreg_RestrictProfilingToAdminUsers=0" in remedy
    assert "rebuild the initramfs" in remedy
    assert "cap-add" not in remedy


@pytest.mark.parametrize(
    ("inside", "remedy"),
    [
        ({".dockerenv": ""}, "--cap-add=SYS_ADMIN"),
        ({"run/.containerenv": ""}, "--cap-add=SYS_ADMIN"),
        ({"var/run/secrets/kubernetes.io/x": ""}, "a pod with securityContext.capabilities.add"),
        ({".singularity.d/x": ""}, "on the host, write `options nvidia"),
    ],
)
def test_each_container_has_its_own_remedy(tree, inside, remedy):
    found = permission_remedy(tree({**FORBIDDEN, **inside}), {})
    assert remedy in found
    assert "sudo -E" not in found
