import psutil
import pytest
from scripted_ncu import PERMISSION

from bench.profilers.ncu import complaints as complaints
from bench.profilers.ncu.complaints import explain

STEP_FAILED = "==ERROR== The application returned an error code (1)."
NOTHING_COUNTED = "==WARNING== No kernels were profiled."
IN_A_KERNEL = '==ERROR== Failed to profile "k" in process 1'
DEVICE = "on device 0"


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        (PERMISSION, ("from this user", "NVreg_RestrictProfilingToAdminUsers=0")),
        (
            "The user does not have permission to access NVIDIA GPU Performance Counters on the "
            "target vGPU device 0.",
            ("virtual GPU", "enable_profiling=1"),
        ),
        (
            "Failed to access the following 4 metrics: dram__bytes.sum\n==ERROR== If profiling on "
            "a MIG instance, it is not possible to collect metrics from GPU units that are shared "
            "with other MIG instances.",
            ("MIG", "nvidia-smi -mig 0"),
        ),
        (
            "Failed to find metric regex:^flop_count_sp",
            ("no metric flop_count_sp", "newest Nsight Compute"),
        ),
        (f"Insufficient driver version to profile {DEVICE}.", ("too old", "update the driver")),
        (
            f"Profiling is not supported {DEVICE} as it uses the Windows Subsystem for Linux "
            "(WSL). Refer to https://docs.nvidia.com/ for more details.",
            ("WSL",),
        ),
        (
            f"Profiling is not supported {DEVICE} as it is part of an active SLI group.",
            ("SLI", "switch SLI off"),
        ),
        (
            f"Confidential computing mode detected {DEVICE}. Nsight Compute cannot run in a secure "
            "confidential computing environment.",
            ("confidential", "another machine"),
        ),
        (
            "ERR_NVCMPGPU - Profiling is not supported on the NVIDIA Crypto Mining Processors "
            "(CMP) of the target device 0.",
            ("mining",),
        ),
        (
            f"Profiling is not supported {DEVICE}. To find out supported GPUs refer --list-chips "
            "option.",
            ("does not know this GPU", "newer Nsight Compute"),
        ),
        (
            "Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).",
            ("no working CUDA driver", "stubs"),
        ),
        (
            "Failed to open/create lock file /tmp/nsight-compute-lock. Please check that this "
            "process has write permissions on this file.",
            ("/tmp/nsight-compute-lock is in", "sudo rm", "TMPDIR"),
        ),
        ("Error in trying to lock file '/t/nsight-compute-lock'", ("/t/nsight-compute-lock",)),
        ("Failed to access the temporary directory.", ("set TMPDIR",)),
        (
            "Insufficient free memory for profiling on the device. Consider the following options",
            ("smaller batch_size",),
        ),
        ("LibraryNotLoaded", ("LD_LIBRARY_PATH",)),
        ("unrecognised option '--config-file'. Use --help.", ("--config-file", "newer Nsight")),
        ("Something new", ("ncu: Something new",)),
    ],
)
def test_each_complaint_has_its_cause_and_remedy(tree, complaint, words):
    explained = explain(
        f"warm-up\n==ERROR== {complaint}\n{STEP_FAILED}\n{NOTHING_COUNTED}\n", tree({})
    )
    assert explained is not None
    for word in words:
        assert word in explained
    assert "\n" not in explained
    assert "{" not in explained


@pytest.mark.parametrize(
    ("running", "words"),
    [
        (["python", "nv-hostengine"], ("dcgmi profile --pause", "--resume")),
        (["nsys"], ("until nsys has ended",)),
        (["python"], ("outside of this container", "dcgmi profile --pause")),
    ],
)
def test_what_holds_the_counters_is_named(tree, monkeypatch, running, words):
    processes = [psutil.Process() for _ in running]
    for process, name in zip(processes, running, strict=True):
        process.info = {"name": name}
    monkeypatch.setattr(complaints.psutil, "process_iter", lambda attributes: processes)
    held = "==ERROR== Profiling failed because a driver resource was unavailable"
    explained = explain(f"{held}. Ensure that no other tool (like DCGM) is running.", tree({}))
    for word in words:
        assert word in explained
    assert "sudo -E" not in explained
    or_forbidden = f"{held} or the user does not have permission to access NVIDIA GPU Performance"
    assert "sudo -E" in explain(or_forbidden, tree({}))


@pytest.mark.parametrize(
    ("console", "explained"),
    [
        ("", None),
        ("==PROF== Connected to process 1\n==WARNING== Some kernel took long\n", None),
        (f"Traceback\nRuntimeError: no\n{STEP_FAILED}\n{NOTHING_COUNTED}\n", None),
        (f"{IN_A_KERNEL}\n{STEP_FAILED}\n", None),
        ('==PROF== Profiling "ERR_NVGPUCTRPERM_kernel" - 0: 0%....100% - 1 pass\n', None),
        (f"{IN_A_KERNEL}\n==PROF== Disconnected\n", 'ncu: Failed to profile "k" in process 1'),
    ],
)
def test_a_step_that_fails_by_itself_is_not_ncus_affair(tree, console, explained):
    assert explain(console, tree({})) == explained


def test_a_step_without_a_kernel_is_explained(tree):
    assert "saw no kernel" in explain(f"{NOTHING_COUNTED}\n", tree({}))
