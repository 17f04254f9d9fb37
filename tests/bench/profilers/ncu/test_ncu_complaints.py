import os

import pytest
from scripted_ncu import PERMISSION

from bench.profilers.ncu.tool import counter_permission, explain

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Linux's files hold the permission")

STEP_FAILED = "==ERROR== The application returned an error code (1)."
NOTHING_COUNTED = "==WARNING== No kernels were profiled."
NO_KERNEL = "ncu saw no kernel in the profiled step: see that the step runs on the GPU"
IN_A_KERNEL = '==ERROR== Failed to profile "k" in process 1'
AS_ROOT = 'sudo -E env "PATH=$PATH" mlproject profile'


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        (PERMISSION, ["from this user", "NVreg_RestrictProfilingToAdminUsers=0", AS_ROOT,
                      "--cap-add=SYS_ADMIN", "driver 525"]),
        ("The user does not have permission to access NVIDIA GPU Performance Counters on the "
         "target vGPU device 0.", ["part of a GPU", "enable_profiling=1"]),
        ("Failed to access the following 4 metrics: dram__bytes.sum\n==ERROR== If profiling on a "
         "MIG instance, it is not possible to collect metrics from GPU units that are shared with "
         "other MIG instances.", ["MIG", "take a whole GPU"]),
        ("Profiling failed because a driver resource was unavailable or the user does not have "
         "permission to access NVIDIA GPU Performance Counters.",
         ["dcgmi profile --pause", AS_ROOT]),
        ("Failed to find metric regex:^flop_count_sp", ["metric regex:^flop_count_sp", "by hand"]),
        ("Insufficient driver version to profile on device 0.",
         ["Insufficient driver version", "Nsight Compute of the driver's CUDA version"]),
        ("Profiling is not supported on device 0. To find out supported GPUs refer --list-chips.",
         ["(Profiling is not supported on device 0)", "--list-chips"]),
        ("unrecognised option '--config-file'. Use --help.", ["'--config-file'", "newer driver"]),
        ("ERR_NVCMPGPU - Profiling is not supported on the NVIDIA Crypto Mining Processors",
         ["ncu: ERR_NVCMPGPU - Profiling is not supported on the NVIDIA Crypto"]),
        ("Something new", ["ncu: Something new"]),
    ],
)  # fmt: skip
def test_each_complaint_has_its_cause_and_remedy(complaint, words):
    console = f"warm-up\n==ERROR== {complaint}\n{STEP_FAILED}\n{NOTHING_COUNTED}\n"
    explained = explain(console)
    assert [word for word in words if word not in explained] == []
    assert "\n" not in explained
    assert "{" not in explained


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
def test_a_step_that_fails_by_itself_is_not_ncus_affair(console, explained):
    assert explain(console) == explained


PARAMS, STATUS = "proc/driver/nvidia/params", "proc/self/status"
FORBIDDEN = {
    PARAMS: "EnableMSI: 1\nRmProfilingAdminOnly: 1\n",
    STATUS: "CapEff:\t00000000a80425fb\n",
}


@pytest.mark.parametrize(
    ("files", "is_allowed"),
    [
        ({}, None),  # only trying decides
        ({PARAMS: "RmProfilingAdminOnly: 0\n"}, True),
        ({PARAMS: "EnableMSI: 1\n"}, True),
        (FORBIDDEN, False),
        ({**FORBIDDEN, STATUS: "CapEff:\t0000000000200000\n"}, True),  # CAP_SYS_ADMIN
        ({**FORBIDDEN, STATUS: "CapEff:\t0000004000000000\n"}, None),  # CAP_PERFMON
    ],
)
def test_the_drivers_files_show_the_permission(tree, files, is_allowed):
    tree(files)
    assert counter_permission()[0] is is_allowed
